"""Sending as logic without I/O: what is checked, and which statements run, for every driver alike.

Everything is checked before the first statement that writes is yielded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from outbox.errors import InvalidMessageError
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.idempotency import require_key, send_once
from outbox.operations.ordering import MOST_ORDERED_KEYS, lock_order_keys, recount, too_many_keys
from outbox.operations.rows import columns_of, load_rows
from outbox.operations.sender import Admitted, Sender
from outbox.records import Receipt
from outbox.statements import Plan, Statement, TextArray

_SQL = load_rows("send.sql")
_SEND, _SEND_WITH_ID, _SEND_ORDERED = _SQL["send"], _SQL["send_with_message_id"], _SQL["send_ordered"]

CHUNK_MESSAGES = 1000
"""Messages per statement of `send_many`: larger ones are not faster (docs/adr/0005)."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of bodies per statement of `send_many`, which bounds the memory that one takes."""


def send(
    sender: Sender,
    message: Message,
    *,
    ordered: bool,
    idempotency_key: str | None,
    selector: MessageQueueSelector | None = None,
) -> Plan[Receipt]:
    """Write one message; see `Outbox.send`.

    Raises:
        InvalidMessageError: the topic does not take the message, or a selector cannot place it.
        TooManyOrderedKeysError: the transaction holds the locks of too many other order keys.
        IdempotencyConflictError: the key stands for other content.
        GroupTypeError: the producer group is registered for half messages only.
        ConfigurationError: an option cannot work here.
    """
    require_message(message)
    if idempotency_key is not None:
        idempotency_key = require_key(idempotency_key, sender.producer_group, message)
    registered = yield from sender.registry.lookup((message.topic,))
    coded = None if sender.codecs is None else (yield from sender.codecs.encode(message))
    topic = registered[message.topic]
    admitted = sender.admit(message, topic, ordered=ordered, chooser=selector, coded=coded)
    if idempotency_key is not None:
        if ordered:
            yield from lock_order_keys([message])
        return (yield from send_once(*admitted, idempotency_key))
    row = admitted.row
    if message.message_id is not None:
        if ordered:
            yield from lock_order_keys([message])
        rows = yield Statement(_SEND_WITH_ID, (*row, str(message.message_id)))
    elif ordered:
        statement = Statement(_SEND_ORDERED, (*row, admitted.lane, message.arg_bytes, MOST_ORDERED_KEYS))
        rows = yield statement
        if not rows:
            yield recount([message])
            rows = yield statement
        if not rows:
            raise too_many_keys()
    else:
        rows = yield Statement(_SEND, (*row, admitted.lane))
    id, message_id = rows[0]
    return Receipt(id, message_id, message.topic, admitted.queue)


def send_many(
    sender: Sender,
    messages: Iterable[Message],
    *,
    ordered: bool,
    selector: MessageQueueSelector | None = None,
) -> Plan[list[Receipt]]:
    """Write many messages in the order given; see `Outbox.send_many`. Raises as `send`."""
    wanted = _listed(messages)
    registered = yield from sender.registry.lookup({message.topic for message in wanted})
    admitted: list[Admitted] = []
    try:
        for message in wanted:
            topic = registered[message.topic]
            coded = None if sender.codecs is None else (yield from sender.codecs.encode(message))
            admitted.append(sender.admit(message, topic, ordered=ordered, chooser=selector, coded=coded))
    except InvalidMessageError as error:
        error.args = (f"messages[{len(admitted)}]: {error}",)
        raise
    if ordered and wanted:
        yield from lock_order_keys(wanted)
    receipts: list[Receipt] = []
    for chunk in _chunks(admitted):
        params = columns_of([each.row for each in chunk])
        if chunk[0].message.message_id is None:
            lanes = TextArray([each.lane for each in chunk])
            rows = yield Statement(_SQL["send_many"], [*params, lanes])
        else:
            ids = TextArray([str(each.message.message_id) for each in chunk])
            rows = yield Statement(_SQL["send_many_with_message_id"], [*params, ids])
        # Ids were given out in the order of the list, so sorting by id is the list's order, come what may.
        rows.sort()
        receipts += (
            Receipt(id, message_id, each.message.topic, each.queue)
            for (id, message_id), each in zip(rows, chunk, strict=True)
        )
    return receipts


def _listed(messages: Any) -> list[Message]:
    """The messages of `send_many`, each of them looked at."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise InvalidMessageError(
            "messages",
            f"is {type(messages).__name__}",
            "a list of messages; one message is sent by send(conn, message)",
        )
    listed = list(messages)
    for index, message in enumerate(listed):
        if not isinstance(message, Message):
            raise InvalidMessageError(f"messages[{index}]", f"is {type(message).__name__}", "outbox.Message")
    return listed


def require_message(message: Any) -> None:
    """Refuse what is not a message.

    Raises:
        InvalidMessageError: naming its type.
    """
    if not isinstance(message, Message):
        raise InvalidMessageError("message", f"is {type(message).__name__}", "outbox.Message")


def _chunks(admitted: list[Admitted]) -> Iterator[list[Admitted]]:
    """Cut at a number of messages, at a number of bytes, and where own message ids begin or end."""
    chunk: list[Admitted] = []
    size = 0
    for each in admitted:
        length = len(each.message.body_bytes or b"")
        if chunk and (
            len(chunk) >= CHUNK_MESSAGES
            or size + length > CHUNK_BYTES
            or (chunk[-1].message.message_id is None) != (each.message.message_id is None)
        ):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += length
    if chunk:
        yield chunk
