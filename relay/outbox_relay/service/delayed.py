"""Delayed messages: releases them when they are due, by the database's clock."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from outbox_relay.statements import Statements

STATEMENTS = Statements("service/delayed.sql")
LOOK_EVERY_S = 0.25
"""Longest time between two looks at what is due."""
LOOK_AT_ALL_EVERY_S = 60.0
"""Time between two looks that begin at the beginning, should somebody have moved a message to an earlier time."""
EVER = "-infinity"


class Delayed:
    """Knows when and from where to look next, so that a relay without delayed messages pays little.

    A message is put aside only while it is not due, so nothing can come to wait for a time before the last look.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._look_at = 0.0
        self._look_at_all = 0.0
        self._since = EVER

    def claimed(self) -> None:
        """Look soon: a message was put aside that may be due at any moment."""
        self._look_at = 0.0

    def release(self) -> int:
        """Release what is due; return how many messages."""
        now = time.monotonic()
        if now < self._look_at:
            return 0
        if now >= self._look_at_all:
            self._look_at_all = now + LOOK_AT_ALL_EVERY_S
            self._since = EVER
        row = self._conn.execute(STATEMENTS["next_due"], {"since": self._since}, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (an aggregate has a row)
        seconds, self._since = row
        if seconds is None or seconds > 0:
            self._look_at = now + min(LOOK_EVERY_S if seconds is None else seconds, LOOK_EVERY_S)
            return 0
        released = self._conn.execute(STATEMENTS["release"], {"since": self._since}, prepare=True).rowcount
        if not released:
            # What is due is locked by somebody: do not ask at every turn.
            self._look_at = now + LOOK_EVERY_S
        return released
