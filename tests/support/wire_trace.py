"""What a session says to PostgreSQL, read off the wire by libpq's own trace: nothing is hidden, no clock is in it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


@contextmanager
def traced(conn: psycopg.Connection[Any]) -> Iterator[list[str]]:
    """Yield a list that holds, after the block, what the session sent and received in it: lines of libpq's trace."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        conn.pgconn.trace(file.fileno())
        try:
            yield lines
        finally:
            conn.pgconn.untrace()  # which flushes it
            file.seek(0)
            lines += file.read().splitlines()


def ready(lines: list[str]) -> int:
    """Return how often the server reported that it is ready for the next statement."""
    return sum("ReadyForQuery" in line for line in lines)


def waits(lines: list[str]) -> int:
    """Return how often the client stopped sending and waited; statements that travel together count once."""
    sides = "".join(side[1] for line in lines if (side := re.search(r"\t([FB])\t", line)))
    return len(re.findall("F+B", sides))


def sent(lines: list[str], kind: str) -> int:
    """Return how many messages of a kind the client sent: Parse, Bind, Query."""
    return sum(bool(re.search(rf"\tF\t\d+\t{kind}\t", line)) for line in lines)
