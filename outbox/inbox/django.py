"""Listeners that write through Django, in the transaction that also records the message.

    def add_points(connection, message):
        Points.objects.create(customer=message.key.decode(), points=10)
        return ConsumeResult.SUCCESS

    PushConsumer("points", {"orders": "*"}, django_listener(add_points), dsn=connections_of("default"), …)

While the listener runs, `django.db.connections[alias]` of its thread is the consumer's connection, inside an atomic
block that only the consumer ends. So models and managers that use the alias write in the transaction of the inbox, and:

- `transaction.atomic()` makes a savepoint; what it rolls back is taken back, and the message stays taken over.
- `commit()`, `rollback()`, `set_autocommit()` and `close()` of the connection raise and end nothing.
- `transaction.on_commit()` raises: the consumer commits after the listener has returned, and may die in between, so the
  function would be lost. Send a message by `Outbox` instead.
- the use of another alias raises, unless `also` names it: it is not part of the transaction, so it may have its
  effect twice, or without the message.
- `transaction.set_rollback(True)`, and an `atomic(savepoint=False)` that raised, allow no SUCCESS.

When the process dies, or PostgreSQL ends the transaction, between any two of these: nothing is committed, and the
message comes again, as with a connection of psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

import psycopg
from django.db import Error as DjangoError
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.transaction import Atomic

from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox.results import is_success
from outbox.inbox.sessions import is_infrastructure

P = ParamSpec("P")
R = TypeVar("R")
PsycopgConnection = psycopg.Connection[Any]
_ENDS = ("commit", "rollback", "set_autocommit", "close")


class AliasConnections:
    """Opens connections for a consumer as Django opens those of an alias; called by the consumer."""

    def __init__(self, alias: str) -> None:
        """Check the alias; nothing is opened."""
        self.alias = alias
        _require_postgresql(alias)

    def __call__(self) -> PsycopgConnection:
        """Open a connection; Django knows nothing of it until a listener has it."""
        wrapper = _wrapper(self.alias)
        wrapper.connect()
        conn: PsycopgConnection = wrapper.connection
        conn.autocommit = False
        _OPENED.setdefault(self.alias, WeakSet()).add(conn)
        return conn


_OPENED: dict[str, WeakSet[PsycopgConnection]] = {}
"""The connections that consumers have of each alias."""


def connections_of(alias: str = "default") -> AliasConnections:
    """Return what opens connections for a consumer, with the settings of an alias in `DATABASES`.

    They are not in Django's pool, and Django's `CONN_MAX_AGE` does not end them.

    Args:
        alias: a database of the engine `django.db.backends.postgresql`, in which the tables of the inbox are.

    Raises:
        ConfigurationError: There is no such alias, or it has another engine or psycopg 2.
    """
    return AliasConnections(alias)


def django_listener(
    listener: Callable[Concatenate[Any, P], R], *, using: str = "default", also: Collection[str] = ()
) -> Callable[Concatenate[PsycopgConnection, P], R]:
    """Make a listener of a function that gets a connection of Django instead of one of psycopg.

    Args:
        listener: called with `django.db.connections[using]` and a message, or with what a batch listener gets.
        using: the alias; the consumer's `dsn` must be `connections_of(using)`.
        also: other aliases that the listener may use, such as a replica; what it writes there is not part of the
            transaction.

    Raises:
        ConfigurationError: There is no such alias, or it has another engine or psycopg 2.
    """
    _require_postgresql(using)
    for alias in also:
        _require_alias(alias)

    def called(conn: PsycopgConnection, /, *args: P.args, **options: P.kwargs) -> R:
        if conn not in _OPENED.get(using, ()):
            raise ConfigurationError(_foreign(using))
        try:
            with _lent(using, conn) as wrapper, _others_refused(using, also):
                result = listener(wrapper, *args, **options)
                if wrapper.needs_rollback and is_success(result):
                    raise ListenerError(
                        "the listener returned SUCCESS after transaction.set_rollback(True), or after an atomic block "
                        "without a savepoint that raised, so nothing that it wrote can be committed; allowed: return "
                        "DISCARD, let the error pass, or leave out savepoint=False"
                    )
                return result
        except DjangoError as error:
            # The consumer knows a server that is away, or a deadlock, by psycopg's error.
            if isinstance(error.__cause__, psycopg.Error) and is_infrastructure(error.__cause__):
                raise error.__cause__ from error
            raise

    called.require_connect = lambda dsn: _require_own(dsn, using)  # type: ignore[attr-defined]
    return called


def _require_own(dsn: object, using: str) -> None:
    if not isinstance(dsn, AliasConnections) or dsn.alias != using:
        raise ConfigurationError(_foreign(using))


def _foreign(using: str) -> str:
    return (
        f"dsn: is not a connection of Django's database {using!r}, so the listener and the inbox could be in "
        f"different databases; allowed: dsn=connections_of({using!r})"
    )


@contextmanager
def _lent(alias: str, conn: PsycopgConnection) -> Iterator[Any]:
    """Put a connection that is in a transaction in the place of an alias, for this thread."""
    wrapper = _wrapper(alias)
    wrapper.connection = conn
    wrapper.autocommit = False
    wrapper.in_atomic_block = True
    wrapper.atomic_blocks.append(Atomic(alias, savepoint=True, durable=False))
    vars(wrapper).update(dict.fromkeys(_ENDS, _refuse_end), on_commit=_refuse_on_commit)
    before = connections[alias]
    connections[alias] = wrapper
    try:
        yield wrapper
    finally:
        connections[alias] = before
        wrapper.connection = None  # what the listener has left behind can use it no more


@contextmanager
def _others_refused(using: str, also: Collection[str]) -> Iterator[None]:
    """Refuse statements of this thread on other aliases."""
    with ExitStack() as stack:
        for alias in connections:
            if alias in also:
                connections[alias].close_if_unusable_or_obsolete()
            elif alias != using:
                stack.enter_context(
                    _replaced(connections[alias], "ensure_connection", _refuse_other(alias, using))
                )
        yield


@contextmanager
def _replaced(wrapper: Any, name: str, replacement: Callable[..., NoReturn]) -> Iterator[None]:
    """Replace a method of an object."""
    vars(wrapper)[name] = replacement
    try:
        yield
    finally:
        del vars(wrapper)[name]


def _refuse_end(*args: object, **options: object) -> NoReturn:
    raise ListenerError(
        "commit(), rollback(), set_autocommit() or close() was called on the connection of the listener, and did "
        "nothing; leave it out, or use `with transaction.atomic():`: the consumer commits after the listener returns"
    )


def _refuse_on_commit(*args: object, **options: object) -> NoReturn:
    raise ListenerError(
        "transaction.on_commit() was called in a listener: the consumer commits after it has returned, and the "
        "function would be lost if the process died; allowed: send a message by Outbox on `connection.connection`"
    )


def _refuse_other(alias: str, using: str) -> Callable[..., NoReturn]:
    def refuse(*args: object) -> NoReturn:
        raise ListenerError(
            f"the database {alias!r} is not part of the transaction that records the message in {using!r}; allowed: "
            f"using={using!r}, or django_listener(…, also=[{alias!r}]) if what is written there may be repeated"
        )

    return refuse


def _wrapper(alias: str) -> Any:
    """Make a connection object of Django of our own, which no pool knows."""
    settings = dict(connections.settings[alias])
    settings["OPTIONS"] = {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
    return type(connections[alias])(settings, alias)


def _require_alias(alias: str) -> None:
    if alias not in connections.settings:
        known = ", ".join(map(repr, connections.settings))
        raise ConfigurationError(f"{alias!r} is not in DATABASES; allowed: {known}")


def _require_postgresql(alias: str) -> None:
    _require_alias(alias)
    wrapper = connections[alias]
    if not isinstance(wrapper, DatabaseWrapper) or wrapper.Database.__name__ != "psycopg":
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the engine is {connections.settings[alias]['ENGINE']} by "
            f"{wrapper.Database.__name__}; allowed: django.db.backends.postgresql with psycopg 3"
        )
