"""A line to the person who runs a test, such as the seed that repeats a run: `tell(line)`."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], None]
