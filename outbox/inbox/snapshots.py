"""Which isolation level lets a statement see what was committed before it.

A parked message is taken out in three statements: lock its key, delete it, find the next one behind it. A member that
parks a message behind the key has that lock until its commit, so a statement that begins after the lock finds the
message. In a REPEATABLE READ or SERIALIZABLE transaction all statements have a snapshot from before the lock:

    application                         member
    BEGIN REPEATABLE READ; SELECT …
                                        take, park_behind: 2 waits behind 1; commit
    lock_held_key, take_out
    follow: does not see message 2
    let_go: the key is not held         message 2 waits for ever

The statements that lock (`lock_held_key`, `lock_lease`) therefore return the isolation level, and lock nothing in such
a transaction.
"""

from __future__ import annotations

from outbox.errors import IsolationLevelError


def require_new_snapshots(isolation: str) -> None:
    """Refuse a transaction whose statements do not see what was committed before them.

    Args:
        isolation: its level, as PostgreSQL names it.

    Raises:
        IsolationLevelError: It is REPEATABLE READ or SERIALIZABLE.
    """
    if isolation not in ("read committed", "read uncommitted"):
        raise IsolationLevelError(
            f"conn: its transaction is {isolation.upper()}; allowed: READ COMMITTED, because a message that was parked "
            "after the transaction's snapshot would be lost; roll back, set conn.isolation_level = "
            "psycopg.IsolationLevel.READ_COMMITTED (or run BEGIN ISOLATION LEVEL READ COMMITTED), and try again"
        )
