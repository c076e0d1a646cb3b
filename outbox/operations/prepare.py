"""Preparing half messages as logic without I/O: what is checked, and which statements run, for every driver alike."""

from __future__ import annotations

from outbox.codecs.codec import Coded
from outbox.durations import Duration, interval, text_of
from outbox.errors import ConfigurationError
from outbox.message import Message
from outbox.operations import topics
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.idempotency import prepare_once, require_key
from outbox.operations.rows import load_rows
from outbox.operations.send import require_message
from outbox.operations.sender import Admitted, Sender
from outbox.operations.topics import MessageType, Topic
from outbox.records import HalfMessage
from outbox.statements import Plan, Statement

_SQL = load_rows("prepare.sql")


def prepare(
    sender: Sender,
    message: Message,
    *,
    check_after: Duration | None = None,
    ordered: bool = False,
    idempotency_key: str | None = None,
    selector: MessageQueueSelector | None = None,
) -> Plan[HalfMessage]:
    """Write a half message; see `Outbox.prepare`.

    Raises:
        ConfigurationError: the sender has no producer group, or an option cannot work.
        InvalidMessageError: the topic does not take half messages, or not this one.
        GroupTypeError: the producer group is registered for normal messages only.
        IdempotencyConflictError: the key stands for other content.
    """
    require_message(message)
    if sender.producer_group is None:
        raise ConfigurationError(
            "producer_group: missing; a half message needs one, because the checker asks the group's listeners when no "
            "decision comes. Use Outbox(producer_group=…)"
        )
    if ordered:
        raise ConfigurationError(
            "ordered: a half message takes its place in the order when it is committed, not now; "
            "allowed: commit(conn, half, ordered=True)"
        )
    first_check = text_of(interval("check_after", check_after, ConfigurationError))
    if idempotency_key is not None:
        idempotency_key = require_key(idempotency_key, sender.producer_group, message)
    registered = yield from sender.registry.lookup((message.topic,), half=True)
    coded = None if sender.codecs is None else (yield from sender.codecs.encode(message))
    admitted = _admit(sender, message, registered[message.topic], selector, coded)
    row, queue = admitted.row, admitted.queue
    if idempotency_key is not None:
        found = yield from prepare_once(*admitted, idempotency_key, check_after=first_check)
        return HalfMessage(*found[:4], message.transaction_id, found.duplicate)
    params = (*row, admitted.lane, first_check)
    if message.message_id is None:
        rows = yield Statement(_SQL["prepare"], params)
    else:
        params = (*params, str(message.message_id))
        rows = yield Statement(_SQL["prepare_with_message_id"], params)
    id, message_id = rows[0]
    return HalfMessage(id, message_id, message.topic, queue, message.transaction_id)


def _admit(
    sender: Sender,
    message: Message,
    topic: Topic | None,
    chooser: MessageQueueSelector | None,
    coded: Coded | None,
) -> Admitted:
    """Check the topic's type for a half message, and all else as for any message."""
    if topic is not None:
        topics.require_type(topic, message, half=True)
        topic = topic._replace(message_type=MessageType.MIXED)
    return sender.admit(message, topic, ordered=False, chooser=chooser, coded=coded)
