"""Preparing half messages, and the core of everything that is done with them, as logic without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outbox.durations import Span, interval, text_of
from outbox.errors import ConfigurationError, InvalidMessageError
from outbox.message import Message
from outbox.operations import groups, topics
from outbox.operations.cancel import cancel
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.decide import AnyMessage, Decision, Verdict, decide, join
from outbox.operations.idempotency import prepare_once, require_key
from outbox.operations.rows import Row
from outbox.operations.send import Sending
from outbox.operations.topics import KNOWN_FOR, MessageType, Topic
from outbox.partitioning.lanes import lane_of
from outbox.records import HalfMessage
from outbox.statements import Plan, Statement, load

_SQL = load("prepare.sql")


class Halves(Sending):
    """What `Outbox` and `AsyncOutbox` share beyond sending: half messages, their groups, and cancelling."""

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
    ) -> None:
        """Configure an outbox; it opens nothing and keeps no connection, so one serves any number of threads.

        Args:
            producer_group: Who sends: goes with every message; half messages need it, for it says who is asked about
                them. Idempotency keys are unique within it.
            selectors: Custom message queue selectors by name, see `outbox.operations.custom_selectors`.
            topic_ttl: Seconds for which the registration of a topic, and of the group, is remembered.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(producer_group, selectors=selectors, topic_ttl=topic_ttl)
        self._topics: groups.Registry = groups.Registry(self.producer_group, topic_ttl)

    def _prepare(
        self,
        message: Message,
        *,
        checker: str | None,
        biz_type: str | None,
        biz_id: str | None,
        transaction_id: str | None,
        check_after: Span | None,
        ordered: bool,
        idempotency_key: str | None,
    ) -> Plan[HalfMessage]:
        message = self._half(message, checker, biz_type, biz_id, transaction_id, ordered=ordered)
        first_check = text_of(interval("check_after", check_after, ConfigurationError))
        if idempotency_key is not None:
            require_key(idempotency_key, self.producer_group, message)
        registered = yield from self._topics.lookup((message.topic,), half=True)
        row, queue = self._admit_half(message, registered[message.topic])
        if idempotency_key is not None:
            found = yield from prepare_once(message, row, queue, idempotency_key, check_after=first_check)
            return HalfMessage(*found[:4], message.transaction_id, found.duplicate)
        params = (*row, str(lane_of(message.topic, queue, message.arg_bytes)), first_check)
        if message.message_id is None:
            rows = yield Statement(_SQL["prepare"], params)
        else:
            params = (*params, str(message.message_id))
            rows = yield Statement(_SQL["prepare_with_message_id"], params)
        id, message_id = rows[0]
        return HalfMessage(id, message_id, message.topic, queue, message.transaction_id)

    def _half(
        self,
        message: Any,
        checker: str | None,
        biz_type: str | None,
        biz_id: str | None,
        transaction_id: str | None,
        *,
        ordered: bool,
    ) -> Message:
        """The message with what the arguments say of it; they win over the message's own fields."""
        if not isinstance(message, Message):
            raise InvalidMessageError("message", f"is {type(message).__name__}", "outbox.Message")
        if self.producer_group is None:
            raise ConfigurationError(
                "producer_group: missing, and a half message needs one: it says who is asked when the producer falls "
                "silent; use Outbox(producer_group=…)"
            )
        if ordered:
            raise ConfigurationError(
                "ordered: a half message takes its place in the order when it is committed, not now; "
                "allowed: commit(conn, half, ordered=True)"
            )
        given = {
            "checker": checker,
            "biz_type": biz_type,
            "biz_id": biz_id,
            "transaction_id": transaction_id,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(message, **changes) if changes else message

    def _admit_half(self, message: Message, topic: Topic | None) -> tuple[Row, int | None]:
        """Check the topic's type for a half message, and all else as for any message."""
        if topic is not None:
            topics.require_type(topic, message, half=True)
            topic = topic._replace(message_type=MessageType.MIXED)
        admitted = self._admit(message, topic, ordered=False)
        return admitted.row, admitted.queue

    def _commit(self, half: AnyMessage, remark: str | None, *, ordered: bool) -> Plan[Decision]:
        return decide(half, Verdict.COMMITTED, remark, ordered=ordered)

    def _rollback(self, half: AnyMessage, remark: str | None) -> Plan[Decision]:
        return decide(half, Verdict.ROLLED_BACK, remark)

    def _join(self, half: AnyMessage) -> Plan[None]:
        return join(half)

    def _cancel(self, message_id: AnyMessage, remark: str | None) -> Plan[Decision]:
        return cancel(message_id, remark)

    def _register_group(
        self, name: str, message_type: MessageType | str | None, **options: Any
    ) -> Plan[groups.ProducerGroup]:
        group = yield from groups.register(name, message_type, **options)
        self._topics.forget_group()
        return group
