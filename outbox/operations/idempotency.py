"""Sending with an idempotency key: the same send twice, from a retried request, is one message."""

from __future__ import annotations

from hashlib import sha256
from struct import pack
from typing import Any

from outbox.errors import ConfigurationError, IdempotencyConflictError
from outbox.message import Message
from outbox.operations.rows import Row
from outbox.partitioning.lanes import lane_of
from outbox.receipt import Receipt
from outbox.statements import Plan, Statement, load

_SQL = load("send.sql")
_PREPARE_ONCE = load("prepare.sql")["prepare_once"]
LONGEST_KEY = 255


def require_key(key: Any, producer_group: str | None, message: Message) -> None:
    """Check the options of an idempotent send.

    Raises:
        ConfigurationError: the key is no text of 1 to 255 characters, there is no producer group whose keys these
            would be, or the message brings an id of its own.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or "\0" in key:
        shown = repr(key[:40]) if isinstance(key, str) else type(key).__name__
        raise ConfigurationError(
            f"idempotency_key: {shown}; allowed: text of 1 to {LONGEST_KEY} characters without NUL"
        )
    if producer_group is None:
        raise ConfigurationError(
            "idempotency_key: keys belong to a producer group; use Outbox(producer_group=…)"
        )
    if message.message_id is not None:
        raise ConfigurationError(
            "idempotency_key: not together with Message(message_id=…): the first send's id is the one that counts"
        )


def digest_of(message: Message, *, half: bool = False) -> bytes:
    """SHA-256 of what makes two sends the same; a message and a half message are never the same.

    Left out is what a retry computes anew: trace, delivery time and transaction id. Each part is preceded by its
    length, so that no two different messages run together.
    """
    digest = sha256(b"half" if half else b"")
    for part in (
        message.topic,
        message.key_bytes,
        message.body_bytes,
        message.headers_json,
        message.order_key_bytes,
        message.selector,
        None if message.queue is None else str(message.queue),
        "|".join(message.tags),
        " ".join(message.index_keys),
        message.checker,
        message.biz_type,
        message.biz_id,
    ):
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"\xff" * 8 if data is None else pack("!Q", len(data)))
        digest.update(data or b"")
    return digest.digest()


def send_once(message: Message, row: Row, queue: int | None, key: str) -> Plan[Receipt]:
    """Send, or answer with the receipt of the first send; two round trips. See `_once`."""
    digest = digest_of(message)
    return (
        yield from _once(
            message, queue, digest, Statement(_SQL["send_once"], (*row, _lane(message, queue), key, digest))
        )
    )


def prepare_once(
    message: Message, row: Row, queue: int | None, key: str, *, check_after: str | None
) -> Plan[Receipt]:
    """Prepare, or answer with the receipt of the first half message; two round trips. See `_once`."""
    digest = digest_of(message, half=True)
    statement = Statement(_PREPARE_ONCE, (*row, _lane(message, queue), key, digest, check_after))
    return (yield from _once(message, queue, digest, statement))


def _lane(message: Message, queue: int | None) -> str:
    """The row's lane, as `outbox.lane_of` has it: without it the table's trigger would run once more."""
    return str(lane_of(message.topic, queue, message.arg_bytes))


def _once(message: Message, queue: int | None, digest: bytes, statement: Statement) -> Plan[Receipt]:
    """Run a statement that inserts a row, and notes its key ($18) and digest, unless the key is known.

    A first sender that has not ended yet is waited for: if it commits, its message is the one; if it rolls back,
    this send is the first. The wait is the first statement, because a statement does not see what commits while it
    waits.

    Raises:
        IdempotencyConflictError: the key was used for other content.
        psycopg.errors.UniqueViolation: another program noted the key without its lock; the transaction has failed.
    """
    group, key = statement.params[9], statement.params[17]
    yield Statement(_SQL["lock_idempotency_key"], (group, key))
    rows = yield statement
    if not rows:
        yield Statement(_SQL["refuse_unlocked_key"], (group, key))
        raise IdempotencyConflictError(
            f"idempotency_key {key!r} of producer group {group!r} changed hands; roll back"
        )
    id, message_id, earlier = rows[0]
    if earlier is not None and earlier != digest:
        raise IdempotencyConflictError(
            f"idempotency_key {key!r} of producer group {group!r} stands for message {message_id} "
            f"(digest {earlier.hex()[:16]}…); this message for topic {message.topic!r} differs "
            f"(digest {digest.hex()[:16]}…). Allowed: the same content again, or another key"
        )
    if earlier is not None:
        # What a custom selector chose for the first one is not known here; it may choose differently today.
        return Receipt(id, message_id, message.topic, message.queue, duplicate=True)
    return Receipt(id, message_id, message.topic, queue)
