"""The outbox on the connection of a database alias of Django, in the block of `transaction.atomic` that is open.

The first argument of each call names the database:

- a model's instance: where it was saved; a model's class: where the router writes it;
- an alias of `DATABASES`, or its connection, such as `django.db.connection`.

A call never commits, and a savepoint that is rolled back takes its messages along. Outside a transaction it is
refused, also where only a `TestCase` has begun one: the same code would fail in production. An outbox with
`own_transaction=True` begins one there instead, and commits it at the end of the call, for messages that belong to no
row.

An error of the database is Django's own, from psycopg's. The transaction has failed then, and is marked so that Django
refuses further queries until the block has ended: catch the error outside of a block of its own.

Statements go to psycopg directly, so `assertNumQueries`, `execute_wrapper` and Django's query log do not show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from outbox.calls import OutboxCalls
from outbox.codecs.codec import Codec
from outbox.drivers import psycopg_sync
from outbox.errors import ConfigurationError, InvalidConnectionError, NoTransactionError
from outbox.extras import needs
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.topics import KNOWN_FOR
from outbox.statements import Plan
from outbox.tracing import Tracing

with needs("django"):
    from django.db import DatabaseError, connections, router, transaction
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model
    from django.utils.connection import ConnectionProxy

T = TypeVar("T")


class DjangoOutbox(OutboxCalls[Any]):
    """`Outbox` for a model, an alias of `DATABASES` or a connection of Django.

    Raises from each call, besides what `Outbox` does:
        NoTransactionError: no block of `transaction.atomic` is open for the alias, and autocommit is on.
        InvalidConnectionError: it is of another kind, or of a database that is not PostgreSQL by psycopg 3.
        django.db.DatabaseError: what PostgreSQL refused; psycopg's error is its `__cause__`.
    """

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        own_transaction: bool = False,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Configure an outbox, see `Outbox`.

        Args:
            producer_group: see `Outbox`.
            own_transaction: Outside a transaction, run each call in one of its own instead of refusing it.
            selectors: see `Outbox`.
            topic_ttl: see `Outbox`.
            codecs: see `Outbox`.
            tracing: see `Outbox`.
        """
        super().__init__(
            producer_group, selectors=selectors, topic_ttl=topic_ttl, codecs=codecs, tracing=tracing
        )
        self._own_transaction = own_transaction

    def _run(self, conn: Any, plan: Plan[T]) -> T:
        wrapper = _wrapper_of(conn)
        fault = backend_fault(wrapper)
        if fault is not None:
            raise InvalidConnectionError(f"conn: {fault}")
        if _is_in_transaction(wrapper):
            return _run_in_transaction(wrapper, plan)
        if not self._own_transaction:
            raise NoTransactionError(_outside(wrapper))
        with transaction.atomic(using=wrapper.alias):
            return _run_in_transaction(wrapper, plan)


def backend_fault(wrapper: Any) -> str | None:
    """Return why an alias cannot carry messages; None if it can."""
    driver = getattr(getattr(wrapper, "Database", None), "__name__", "no driver")
    if wrapper.vendor == "postgresql" and driver == "psycopg":
        return None
    engine = wrapper.settings_dict["ENGINE"]
    return (
        f"is of DATABASES[{wrapper.alias!r}], whose engine is {engine} by {driver}; allowed: "
        "django.db.backends.postgresql with psycopg 3 (pip install 'psycopg[binary]'; Django prefers it to psycopg2)"
    )


def _wrapper_of(given: Any) -> Any:
    """Return this thread's connection of the alias that is meant."""
    if isinstance(given, str):
        if given not in connections.settings:
            known = ", ".join(map(repr, connections.settings))
            raise ConfigurationError(f"{given!r} is not in DATABASES; allowed: {known}")
        return connections[given]
    if isinstance(given, Model):
        return connections[router.db_for_write(type(given), instance=given)]
    if isinstance(given, type) and issubclass(given, Model):
        return connections[router.db_for_write(given)]
    if isinstance(given, BaseDatabaseWrapper):
        return given
    if isinstance(given, ConnectionProxy):
        return connections[given.alias]
    raise InvalidConnectionError(
        f"conn: is {type(given).__module__}.{type(given).__qualname__}; allowed here: a model or its instance, an "
        "alias of DATABASES, django.db.connection or connections[alias]"
    )


def _is_in_transaction(wrapper: Any) -> bool:
    """Whether the application has a transaction open, or manages them by hand."""
    if not wrapper.in_atomic_block:
        return not wrapper.get_autocommit()
    return not all(block._from_testcase for block in wrapper.atomic_blocks)


def _outside(wrapper: Any) -> str:
    where = (
        "only the TestCase has begun a transaction, and production has none here"
        if wrapper.in_atomic_block
        else "no transaction is open, so the message would be committed by itself, apart from your rows"
    )
    return (
        f"conn: DATABASES[{wrapper.alias!r}]: {where}; allowed: send inside "
        f"`with transaction.atomic(using={wrapper.alias!r}):`, or by DjangoOutbox(own_transaction=True) what "
        "belongs to no row"
    )


def _run_in_transaction(wrapper: Any, plan: Plan[T]) -> T:
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    connection: psycopg.Connection[Any] = wrapper.connection
    try:
        with wrapper.wrap_database_errors:
            return psycopg_sync.run(connection, plan)
    except DatabaseError as error:
        for note in getattr(error.__cause__, "__notes__", ()):
            error.add_note(note)
        if wrapper.in_atomic_block and connection.info.transaction_status == pq.TransactionStatus.INERROR:
            wrapper.needs_rollback = True
        raise
