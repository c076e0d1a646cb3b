"""Errors that repeat while a server is away: an operator sees the first one, and one a minute."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from time import monotonic

SILENCE = 60.0


class Repeats:
    """Chooses the level at which an error is logged. Not thread-safe."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}

    def level(self, cause: Hashable) -> int:
        """Return WARNING for a cause that was not logged for a minute, else DEBUG."""
        now = monotonic()
        if now - self._logged.get(cause, -SILENCE) < SILENCE:
            return logging.DEBUG
        self._logged[cause] = now
        return logging.WARNING
