"""Runs that lose their lock on a warehouse, and how the one that comes too late is refused."""

from __future__ import annotations

from outbox_etl.errors import ConcurrentRunError
from outbox_etl.failures import explained

BREAK_LOCKS = """
    SELECT pg_terminate_backend(pid, 30000) FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Ends the sessions that have a lock on a target, and waits until they are gone."""


def is_refusal(error: Exception) -> bool:
    """Whether it tells an operator that another run came in between."""
    told = explained(error)
    return isinstance(told, ConcurrentRunError) and "another run" in str(told)
