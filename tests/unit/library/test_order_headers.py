"""What the order of a message is, from its row to what an orderly consumer orders by."""

from __future__ import annotations

import pytest

from outbox import wire

LONG = b"x" * 256


def ordered_by(
    key: bytes | None, order_key: bytes | None, queue: int | None = None, selector: str | None = None
) -> bytes | None:
    """What a consumer orders the record of a message by."""
    header = wire.order_header(key, order_key, queue, selector)
    headers = [] if header is None else [(header[0], header[1].encode())]
    return wire.order_of(headers, key, 3 if queue is None else queue)


@pytest.mark.parametrize(
    ("key", "order_key", "queue", "selector"),
    [
        (None, None, None, None),
        (b"k", None, None, "murmur2"),
        (b"k", b"k", None, None),
        (LONG, LONG, None, None),
        (b"k", None, 2, "by_region"),
        (b"k", b"k", 2, "by_region"),
    ],
)
def test_a_message_whose_order_is_that_of_its_key_has_no_header(
    key: bytes | None, order_key: bytes | None, queue: int | None, selector: str | None
) -> None:
    assert wire.order_header(key, order_key, queue, selector) is None


@pytest.mark.parametrize(
    "order_key",
    [b"o-1", b"", "订单".encode(), b"\xff\x00", b"a\x00b", b"hex:", b"hex:61", b"x" * 255, b"\xff" * 255],
)
@pytest.mark.parametrize("key", [None, b"k"])
def test_any_order_key_orders_together_with_records_that_have_it_as_their_key(
    key: bytes | None, order_key: bytes
) -> None:
    header = wire.order_header(key, order_key, None, None)
    assert header is not None
    assert header[0] == "outbox-order-key"
    assert ordered_by(key, order_key) == ordered_by(order_key, None) == order_key


def test_the_header_of_the_longest_order_key_is_short() -> None:
    longest = b"\xff" * 1_048_576
    header = wire.order_header(None, longest, None, None)
    assert header is not None
    assert len(header[1]) < 100
    assert ordered_by(None, longest) == ordered_by(longest, None)


@pytest.mark.parametrize(("key", "order_key"), [(None, None), (b"k", None), (None, b"o"), (b"k", b"o")])
def test_messages_for_a_queue_are_ordered_by_it(key: bytes | None, order_key: bytes | None) -> None:
    assert wire.order_header(key, order_key, 7, None) == ("outbox-queue", "7")
    assert ordered_by(key, order_key, 7) == b"queue:7"


def test_what_a_selector_of_the_producer_chose_is_ordered_by_its_argument() -> None:
    assert ordered_by(b"k", b"eu", 7, "by_region") == b"eu"
    assert ordered_by(b"k", None, 7, "by_region") == b"k"
    assert ordered_by(None, None, 7, "by_region") == b"queue:7"


@pytest.mark.parametrize("value", [b"hex:zz", b"hex:\xff", b"hex:1"])
def test_a_header_that_another_program_made_is_taken_as_it_is(value: bytes) -> None:
    assert wire.order_of([("outbox-order-key", value)], b"k", 0) == value


def test_headers_without_a_value_order_nothing() -> None:
    assert wire.order_of([("outbox-order-key", None), ("outbox-queue", None)], b"k", 0) == b"k"
