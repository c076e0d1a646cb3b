"""What every test may ask for: real servers, a database of its own, topics of its own."""

from __future__ import annotations

pytest_plugins = ("tests.support.servers", "tests.support.logins")
