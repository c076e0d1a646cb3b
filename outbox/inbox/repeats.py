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

    def level(self, cause: Hashable, level: int = logging.WARNING) -> int:
        """Return the level for a cause that was not logged for a minute, else DEBUG."""
        now = monotonic()
        if now - self._logged.get(cause, -SILENCE) < SILENCE:
            return logging.DEBUG
        self._logged[cause] = now
        return level


class QuietLog:
    """The log of a client of Kafka: a kind of line at its level once a minute, and at DEBUG in between.

    librdkafka writes a line for each attempt to connect, many a second at first. It calls `log` while the client is
    polled, so from one thread.
    """

    def __init__(self, to: logging.Logger) -> None:
        """Write to a logger."""
        self._to, self._repeats = to, Repeats()

    def log(self, level: int, text: str, *values: object) -> None:
        """Write a line; the first value is its kind, such as FAIL."""
        self._to.log(
            level if self._repeats.level(values[:1]) > logging.DEBUG else logging.DEBUG, text, *values
        )
