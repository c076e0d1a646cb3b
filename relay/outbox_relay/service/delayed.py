"""Delayed messages: releases them when they are due, by the database's clock."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from outbox_relay.statements import Statements

STATEMENTS = Statements("service/delayed.sql")
LOOK_EVERY_S = 0.25
"""Longest time between two looks at what is due."""


class Delayed:
    """Knows when to look next, so that a relay without delayed messages pays four small queries a second."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._look_at = 0.0

    def claimed(self) -> None:
        """Look soon: a message was put aside that may be due at any moment."""
        self._look_at = 0.0

    def release(self) -> int:
        """Release what is due; return how many messages."""
        now = time.monotonic()
        if now < self._look_at:
            return 0
        row = self._conn.execute(STATEMENTS["next_due"], prepare=True).fetchone()
        seconds = LOOK_EVERY_S if row is None or row[0] is None else row[0]
        if seconds > 0:
            self._look_at = now + min(seconds, LOOK_EVERY_S)
            return 0
        released = self._conn.execute(STATEMENTS["release"], prepare=True).rowcount
        if not released:
            # What is due is locked by somebody: do not ask at every turn.
            self._look_at = now + LOOK_EVERY_S
        return released
