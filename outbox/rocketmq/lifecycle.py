"""What every producer has: its group and its registration, its listeners, the checker in its process.

Both programming models share it, each for threads and for asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Iterable
from functools import partial
from typing import Any

from outbox import sessions, validation
from outbox.checking import GroupChecker, ListenerAsker
from outbox.checking.listeners import Listeners, check_of, name_of
from outbox.errors import ConfigurationError, GroupTypeError, InvalidMessageError, WrongMessageTypeError
from outbox.message import Message
from outbox.operations.topics import MessageType
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.errors import ProducerStateError
from outbox.rocketmq.io import IO, Flow
from outbox.rocketmq.session import Session
from outbox.statements import Plan, Statement, TextArray, load

_GROUPS, _TOPICS = load("groups.sql"), load("topics.sql")
_TAKEN = (MessageType.TRANSACTION, MessageType.MIXED)


class Life:
    """What every producer has: its group, its listeners, its counters, and whether it runs."""

    _io: IO

    def __init__(
        self, producer_group: str, listeners: Listeners | None, listener: Any, topics: Iterable[str]
    ) -> None:
        if listeners is not None and listener is not None:
            raise ConfigurationError(
                "listeners: come with a single listener as well; allowed: either, or listeners.register(listener), "
                "which makes it the default"
            )
        try:
            self.producer_group = validation.text("producer_group", producer_group)
            names = [topics] if isinstance(topics, str) else topics
            self.topics = frozenset(validation.topic_name(name) for name in names)
        except InvalidMessageError as error:
            raise ConfigurationError(str(error)) from None
        self.listeners = Listeners() if listeners is None else listeners
        if listener is not None:
            self.listeners.register(listener)
        self.counts = Counts()
        self._running = False
        self._checker: GroupChecker | None = None
        self._checker_connect: Any = None
        self._check = False

    @property
    def running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._running

    def _require_running(self) -> None:
        if not self._running:
            raise ProducerStateError(
                f"producer of group {self.producer_group!r} is not running; allowed: between start() and shutdown(), "
                "or inside `with producer:`"
            )

    def _begin_start(self) -> None:
        if self._running:
            raise ProducerStateError(f"producer of group {self.producer_group!r} was started before")

    def _require_topic(self, message: Message) -> None:
        if not isinstance(message, Message):
            raise InvalidMessageError("message", f"is {type(message).__name__}", "outbox.Message")
        if self.topics and message.topic not in self.topics:
            raise InvalidMessageError(
                "topic", f"{message.topic!r} is not a topic of this producer", ", ".join(sorted(self.topics))
            )

    def _find(self, message: Message) -> Any:
        """Who answers for a message: looked up before anything is written.

        Raises:
            InvalidMessageError: it is not a Message, or its topic is not one of this producer's.
            ConfigurationError: it has no listener, or two.
        """
        self._require_topic(message)
        listener = self.listeners.find(message)
        if listener is None:
            raise ConfigurationError(f"listener: {self.listeners.explain_missing(message)}")
        return listener

    def _plan_checks(self, connect: Any, checker_connect: Any, *, check: bool, usable: bool) -> None:
        """Choose where the checker's own connection comes from: it works in a thread, and keeps it."""
        self._check = check
        self._checker_connect = checker_connect
        if checker_connect is not None or not check:
            return
        self._checker_connect = connect if usable else _beside(connect)
        if self._checker_connect is None:
            raise ConfigurationError(
                "checker_connect: missing, and the checker needs a connection of its own that is not asynchronous. "
                "Allowed: a DSN or a callable that returns a psycopg.Connection, or check=False where another "
                "process checks this group"
            )

    def _make_checker(self, loop: asyncio.AbstractEventLoop | None = None) -> GroupChecker:
        asker = ListenerAsker(self.listeners, loop=loop)
        return GroupChecker(self._checker_connect, self.producer_group, asker)

    def _register(self) -> Flow[None]:
        """Make the group TRANSACTION unless it is registered, and look at the types of the topics."""
        session = Session(self._io)
        try:
            yield from session.apart(lambda conn: _run(self._io, conn, self._registration()))
        finally:
            yield from session.close()

    def _registration(self) -> Plan[None]:
        name = self.producer_group
        if not (yield Statement(_GROUPS["read_group"], (name,))):
            yield from self._require_unused()
            yield Statement(_GROUPS["add_group"], (name, str(MessageType.TRANSACTION)), answers=False)
        ((_, message_type, *_),) = yield Statement(_GROUPS["read_group"], (name,))
        if message_type not in _TAKEN:
            raise GroupTypeError(
                f"producer_group: {name!r} is registered as {message_type}, and half messages need a group of type "
                "TRANSACTION or MIXED; allowed: another group for this producer"
            )
        yield from self._require_topics()

    def _require_unused(self) -> Plan[None]:
        """Refuse to make a group TRANSACTION that sends normal messages: from then on it could not.

        A first normal message that is sent between this look and our commit is not seen; the next one is refused.
        """
        name = self.producer_group
        ((used,),) = yield Statement(_GROUPS["sends_normal_messages"], (name,))
        if used:
            raise GroupTypeError(
                f"producer_group: {name!r} is not registered, which makes it MIXED, and it sends normal messages; as "
                "TRANSACTION, which this producer needs, it could not send them any more. Allowed: another group for "
                f"this producer, or both kinds in this one: outbox group set {shlex.quote(name)} --type MIXED, or "
                f"register_group(conn, {name!r}, message_type='MIXED')"
            )

    def _require_topics(self) -> Plan[None]:
        if self.topics:
            rows = yield Statement(_TOPICS["read_topics"], (TextArray(sorted(self.topics)),))
            wrong = [f"{row[0]!r} is of type {row[1]}" for row in rows if row[1] not in _TAKEN]
            if wrong:
                raise WrongMessageTypeError("topics", ", ".join(wrong), "topics of type TRANSACTION or MIXED")


def refuse_async(listener: Any) -> None:
    """Refuse a listener that would have to be awaited.

    Raises:
        ConfigurationError: naming it and what to use.
    """
    for method in (getattr(listener, "execute_local_transaction", None), check_of(listener)):
        if inspect.iscoroutinefunction(method):
            raise ConfigurationError(
                f"listener: {name_of(method)} of {name_of(listener)} is async; allowed here: functions that return "
                "their answer, or the asynchronous producer"
            )


def _run(io: IO, conn: Any, plan: Plan[None]) -> Flow[None]:
    yield partial(io.run, conn, plan)


def _beside(pool: Any) -> Any:
    """What opens a connection like those of a psycopg pool, or None if the pool does not tell how."""
    conninfo, options = getattr(pool, "conninfo", None), getattr(pool, "kwargs", None) or {}
    if isinstance(conninfo, str) and isinstance(options, dict):
        return partial(sessions.connect, conninfo, **{"application_name": "outbox checker", **options})
    return None
