"""What a consumer sets in each of its sessions at PostgreSQL.

The keeper's session is ours alone, and has the settings of `outbox.sessions`. In a listener's session the statements of
the application run, too: `search_path`, row level security, styles and time zone are as its database and role have
them. Only time-outs that could end the session before the consumer's own limit are switched off.

What the consumer itself waits for in a thread that others need is limited (`LOCK_WAIT`): a row of a message, or a held
key, may be locked by a member that stands still. The limit holds for the session. The statement that takes a message
over for a listener lifts it for the rest of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.errors import LockNotAvailable

from outbox import sessions
from outbox.drivers.psycopg_sync import run
from outbox.errors import ConfigurationError
from outbox.inbox import plans
from outbox.inbox.failures import InterruptedListenerError, LockedError
from outbox.statements import Plan, Statement
from outbox.validation import exact

LOCK_WAIT = 0.25
"""Seconds that a shared thread waits for a lock; then the message waits without it."""
_AWAY = ("08", "57P", "53", "58", "25P04")
"""SQLSTATEs of a server that is away, overloaded or starting, and of a transaction that it ended."""
_AGAIN = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock timeout: another run may succeed."""


def connecting(
    dsn: str | Callable[[], psycopg.Connection[Any]], group: str
) -> Callable[[], psycopg.Connection[Any]]:
    """Return what opens a connection for the listeners of a group.

    Raises:
        ConfigurationError: `dsn` is neither a connection string nor a callable that returns a connection.
    """
    if callable(dsn):
        return lambda: _kept_alive(dsn())
    if not isinstance(dsn, str):
        raise ConfigurationError(
            f"dsn: {dsn!r}; allowed: a connection string, or a callable that returns a connection"
        )
    address = exact(dsn)
    psycopg.conninfo.conninfo_to_dict(address)  # raises if it cannot be read
    return lambda: sessions.connect_for_listeners(address, f"outbox consumer {group}")


def _kept_alive(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    sessions.keep_alive(conn)
    return conn


def use_read_committed(conn: psycopg.Connection[Any]) -> None:
    """Let each statement see what was committed before it: a snapshot from before a lock would miss successors."""
    conn.autocommit = False
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def is_infrastructure(error: BaseException) -> bool:
    """Return whether PostgreSQL is away or asks for another try, or the member ends: the message is not to blame."""
    if isinstance(error, InterruptedListenerError | LockedError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_AWAY) or state in _AGAIN


@contextmanager
def locked_by_others() -> Iterator[None]:
    """Raise `LockedError` where a wait for a lock was too long; the caller rolls back."""
    try:
        yield
    except LockNotAvailable as error:
        raise LockedError(" ".join(str(error).split())) from error


def limit_transactions(conn: psycopg.Connection[Any], seconds: float, *, lock_wait: float = 0.0) -> None:
    """Let PostgreSQL end transactions of a connection that run longer, so that a stopped process holds no message.

    A host that has fallen silent holds it for about ten seconds. `lock_wait` limits each wait for a lock; 0: no limit.

    It sees the rows of groups that are not bound to a role, and of those bound to one that its user is a member of.

    Commits are awaited: offsets move after them, and no crash of PostgreSQL may take an effect back that was passed.

    Before PostgreSQL 17 a whole transaction has no limit: its statements, and the pauses between them, are limited.
    """
    version = conn.info.server_version
    names = ["transaction_timeout"]
    if version < 170000:
        names = ["statement_timeout", "idle_in_transaction_session_timeout"]
    lock_timeout = int(lock_wait * 1000)
    limits = sessions.limits(version, lock_timeout=lock_timeout, **dict.fromkeys(names, int(seconds * 1000)))
    sessions.set_all(conn, sessions.statement(limits))
    use_read_committed(conn)
    run(conn, plans.apply_policies())
    run(conn, plans.await_commits())
    run(conn, plans.notice_dead_clients())
    run(conn, _keep_role())
    conn.commit()


def _keep_role() -> Plan[None]:
    """Note the role of the session: a listener may set another one, and the consumer goes on with its own."""
    yield Statement(plans.SQL["keep_role"])
