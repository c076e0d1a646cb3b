"""Sending with an idempotency key: the same send twice, from a retried request, is one message."""

from __future__ import annotations

import hmac
from hashlib import sha256
from struct import pack
from typing import Any, NamedTuple

from outbox.errors import ConfigurationError, IdempotencyConflictError
from outbox.message import Message
from outbox.operations.rows import COLUMNS, Row, load_rows, row_of
from outbox.partitioning.lanes import lane_of
from outbox.records import Receipt
from outbox.statements import Param, Plan, Statement
from outbox.validation import exact

_SQL = load_rows("send.sql")
_PREPARE_ONCE = load_rows("prepare.sql")["prepare_once"]
_GROUP = list(COLUMNS).index("producer_group")
LONGEST_KEY = 255
_ANOTHER_EACH_TIME = frozenset(
    {"producer_group", "transaction_id", "deliver_at", "deliver_before", "traceparent"}
)
"""Columns that are not the message's content: the group is part of the key, and a retry computes the others again."""


def require_key(key: Any, producer_group: str | None, message: Message) -> str:
    """Check the options of an idempotent send, and return the key.

    Raises:
        ConfigurationError: the key is not text of 1 to 255 characters, there is no producer group whose keys these
            would be, or the message brings an id of its own.
    """
    key = exact(key) if isinstance(key, str) else key
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
    return key


def digest_of(message: Message, *, half: bool = False, secret: bytes = b"") -> bytes:
    """SHA-256 of what makes two sends the same; a message and a half message are never the same.

    Left out is what a retry computes again: trace, delivery time and transaction id. Each part is preceded by its
    length, so that no two different messages run together.

    Args:
        message: as the application made it, before a codec.
        half: whether it is prepared.
        secret: of the codec, without which the content cannot be guessed from the digest.
    """
    digest = sha256(b"half" if half else b"")
    row = row_of(message, message.selector, message.queue, None)
    for column, part in zip(COLUMNS, row, strict=True):
        if column in _ANOTHER_EACH_TIME:
            continue
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"\xff" * 8 if data is None else pack("!Q", len(data)))
        digest.update(data or b"")
    return hmac.digest(secret, digest.digest(), "sha256") if secret else digest.digest()


def send_once(message: Message, row: Row, queue: int | None, secret: bytes, key: str) -> Plan[Receipt]:
    """Send, or return the receipt of the first send; two round trips. See `_once`."""
    digest = digest_of(message, secret=secret)
    statement = Statement(_SQL["send_once"], (*row, _lane(message, queue), key, digest))
    return (yield from _once(message, queue, _Key(row[_GROUP], key, digest), statement))


def prepare_once(
    message: Message, row: Row, queue: int | None, secret: bytes, key: str, *, check_after: str | None
) -> Plan[Receipt]:
    """Prepare, or return the receipt of the first half message; two round trips. See `_once`."""
    digest = digest_of(message, half=True, secret=secret)
    statement = Statement(_PREPARE_ONCE, (*row, _lane(message, queue), key, digest, check_after))
    return (yield from _once(message, queue, _Key(row[_GROUP], key, digest), statement))


def _lane(message: Message, queue: int | None) -> str:
    """The row's lane, as `outbox.lane_of` has it: without it the table's trigger would check once more."""
    return str(lane_of(message.topic, queue, message.arg_bytes))


class _Key(NamedTuple):
    """An idempotency key of a producer group, and the digest of the content that it is to stand for."""

    group: Param
    text: str
    digest: bytes


def _once(message: Message, queue: int | None, wanted: _Key, statement: Statement) -> Plan[Receipt]:
    """Run a statement that inserts a row, and notes its key and digest, unless the key is known.

    A first sender that has not ended yet is waited for: if it commits, its message is the one; if it rolls back,
    this send is the first. The wait is the first statement, because a statement does not see what commits while it
    waits.

    Raises:
        IdempotencyConflictError: the key was used for other content.
        psycopg.errors.UniqueViolation: another program noted the key without its lock; the transaction has failed.
    """
    group, key, digest = wanted
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
