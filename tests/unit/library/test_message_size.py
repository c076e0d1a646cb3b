"""The size of a record: refused at send when its topic would not take it, what the broker counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outbox import Message
from outbox.errors import InvalidMessageError, MessageTooLargeError
from outbox.operations.size import record_size, require_fitting
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def varint(number: int) -> int:
    """Bytes of a zigzag varint of a length."""
    number *= 2
    return max(1, -(-number.bit_length() // 7))


def broker_size(key: bytes, body: bytes, headers: dict[str, bytes]) -> int:
    """A batch of one record in Kafka's message format version 2, counted field by field."""
    fields = 1 + 1 + 1 + varint(len(key)) + len(key) + varint(len(body)) + len(body) + varint(len(headers))
    for name, value in headers.items():
        fields += varint(len(name.encode())) + len(name.encode()) + varint(len(value)) + len(value)
    return 61 + varint(fields) + fields


def test_size_is_what_the_broker_counts_with_every_header_of_ours() -> None:
    message = Message(
        "orders",
        key="订单",
        body=b"x" * 70_000,
        headers={"h": "值" * 100, "none": None},
        tags=["a", "创建"],
        index_keys=["k1", "k2"],
        transaction_id="t" * 30,
        traceparent=TRACE,
        deliver_at=datetime(2027, 1, 1, tzinfo=UTC),
        order_key="o-1",
    )
    ours = {
        "outbox-id": b"i" * 36,
        "outbox-born-at": b"1795363743050",
        "outbox-deliver-at": b"1798761600000",
        "outbox-order-key": b"o-1",
        "outbox-tags": "a||创建".encode(),
        "outbox-keys": b"k1 k2",
        "outbox-producer-group": b"group",
        "outbox-transaction-id": b"t" * 30,
        "traceparent": TRACE.encode(),
        "h": ("值" * 100).encode(),
        "none": b"",
    }
    needed = broker_size("订单".encode(), b"x" * 70_000, ours)
    assert record_size(message, "group") == needed


def test_a_queue_that_a_selector_chose_counts_where_it_is_the_order() -> None:
    message, own = Message("orders", body=b"x"), {"outbox-id": b"i" * 36, "outbox-born-at": b"1795363743050"}
    assert record_size(message, None, 12) == broker_size(b"", b"x", {**own, "outbox-queue": b"12"})
    keyed = Message("orders", key=b"k", body=b"x")
    assert record_size(keyed, None, 12) == broker_size(b"k", b"x", own)


def test_message_that_just_fits_is_taken_and_one_byte_more_is_refused() -> None:
    frame = record_size(Message("orders", body=b"x" * 500), None) - 500
    require_fitting(Message("orders", body=b"x" * (1000 - frame)), None, 1000)
    with pytest.raises(
        MessageTooLargeError, match=r"takes 1,001 bytes .* topic 'orders'; allowed: up to 1,000 bytes"
    ):
        require_fitting(Message("orders", body=b"x" * (1001 - frame)), None, 1000)


def test_too_large_is_an_invalid_message() -> None:
    with pytest.raises(InvalidMessageError):
        require_fitting(
            Message("orders", body=b"x" * DEFAULT_MAX_MESSAGE_BYTES), None, DEFAULT_MAX_MESSAGE_BYTES
        )
