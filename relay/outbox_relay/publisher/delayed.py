"""Delayed messages: releases them when they are due, by the database's clock."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import psycopg

from outbox.statements import Statements, array_text

STATEMENTS = Statements("outbox_relay/publisher/delayed.sql")
FIND_DUE_EVERY_S = 0.25
"""Longest time between two searches for what is due."""
LOOK_AT_ALL_EVERY_S = 60.0
"""Time between two searches that begin at the beginning, should somebody have moved a message to an earlier time."""
EVER = "-infinity"
"""Before every time, in SQL, and as text too: times are compared as the text of years up to 9999 in UTC."""


class Delayed:
    """Knows when and from where to search next, so that a relay without delayed messages pays little.

    A message waits from the moment it is committed, by a row of its own in outbox.waiting. It may be committed long
    after that row was written, with a time before the last search: the finder then finds the message and reports it.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._look_at = 0.0
        self._look_at_all = 0.0
        self._since = EVER
        self.due_at = 0.0
        """Before then nothing is due of what is known (monotonic seconds)."""

    def expect(self, due: str) -> None:
        """Search soon, and from this time on (as the finder reads it): a message was committed that waits for it."""
        self._look_at = self.due_at = 0.0
        self._since = min(self._since, due)

    def start_again(self) -> None:
        """Search all that waits: lanes were taken, whose messages another relay knew of."""
        self._look_at = self._look_at_all = self.due_at = 0.0

    def release(self, lanes: Iterable[int]) -> int:
        """Release what is due of these lanes; return how many messages."""
        now = time.monotonic()
        if now < self._look_at:
            return 0
        if now >= self._look_at_all:
            self._look_at_all = now + LOOK_AT_ALL_EVERY_S
            self._since = EVER
        row = self._conn.execute(STATEMENTS["next_due"], {"since": self._since}, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (an aggregate has a row)
        seconds, self._since = row
        self.due_at = now + seconds
        if seconds > 0:
            self._look_at = now + min(seconds, FIND_DUE_EVERY_S)
            return 0
        released = self._conn.execute(
            STATEMENTS["release"], {"since": self._since, "lanes": array_text(lanes)}, prepare=True
        ).rowcount
        if not released:
            # What is due is locked by somebody: do not ask at every turn.
            self._look_at = now + FIND_DUE_EVERY_S
        return released
