"""Keeps a listener from ending the transaction that it was given.

While the listener runs, `commit()` and `rollback()` of its connection raise and end nothing. A statement that ends the
transaction in SQL text, such as `conn.execute("COMMIT")`, cannot be stopped; the connection then refuses every further
statement of this listener, so nothing else can be committed. What became of the transaction is known to PostgreSQL:

- It was rolled back: nothing of the message is left, and it is a failed attempt like any other.
- It was committed by a delivery: the row of the inbox is committed with a part of the effect, so no member applies the
  message again, and `plans.park` writes a dead letter. If the process dies before that, there is no dead letter.
- It was committed by a retry: the parked row was made dead at the beginning of the transaction, so it is committed as
  dead.

A text that ends a transaction and begins another one, such as `COMMIT AND CHAIN`, is not noticed here. The commit is
found afterwards, by `plans.still_in` or `plans.is_committed_by_listener`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from outbox.errors import ListenerError
from outbox.inbox.messages import Attempt
from outbox.inbox.plans import ENDED

_HINT = "leave out COMMIT and ROLLBACK in the listener: the consumer commits after it returns"


@contextmanager
def guarded(conn: psycopg.Connection[Any], attempt: Attempt) -> Iterator[None]:
    """Guard the transaction of a connection while a listener has it; note in `attempt` if it was ended all the same."""
    wait: Callable[..., Any] = conn.wait

    def refuse() -> NoReturn:
        raise ListenerError(
            f"commit() or rollback() was called on the connection of the listener, and did nothing; {_HINT}"
        )

    def watch(generator: Any, *args: Any, **options: Any) -> Any:
        if attempt.ended:
            raise ListenerError(f"{ENDED}, so its connection refuses this statement; {_HINT}")
        try:
            return wait(generator, *args, **options)
        finally:
            if conn.pgconn.transaction_status == TransactionStatus.IDLE:
                attempt.ended = True
                raise ListenerError(f"{ENDED}; {_HINT}")

    ours = {"wait": watch, "commit": refuse, "rollback": refuse}
    theirs = {name: vars(conn)[name] for name in ours if name in vars(conn)}
    vars(conn).update(ours)
    try:
        yield
    finally:
        for name in ours:
            del vars(conn)[name]
        vars(conn).update(theirs)
