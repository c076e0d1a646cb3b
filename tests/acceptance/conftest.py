"""What the tests of the built wheel ask for."""

from __future__ import annotations

from tests.support.wheel_environments import install, wheel

__all__ = ["install", "wheel"]
