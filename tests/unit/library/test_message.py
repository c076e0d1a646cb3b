"""A message is a checked value: what it takes, what it makes of it, and what it refuses by name."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from outbox import Message
from outbox.errors import InvalidMessageError, OutboxError

V8 = UUID("00000000-0001-8000-8000-000000000000")


def test_message_of_a_topic_alone_is_empty_and_unordered() -> None:
    message = Message("orders")
    assert (message.key, message.body, message.order_key, message.arg_bytes) == (None, b"", None, None)
    assert (message.body_bytes, message.headers_json, message.tags, message.index_keys) == (b"", None, (), ())


def test_text_becomes_utf8() -> None:
    message = Message("orders", key="订单-1", body="五星好评", order_key="é")
    assert message.key_bytes == "订单-1".encode()
    assert message.body_bytes == "五星好评".encode()
    assert message.order_key_bytes == "é".encode()


def test_no_body_is_a_tombstone_and_empty_is_not() -> None:
    assert Message("orders", body=None).body_bytes is None
    assert Message("orders", body="").body_bytes == b""


@pytest.mark.feature("S-101")
def test_arg_is_the_order_key_or_the_key() -> None:
    assert Message("orders", key="k").arg == "k"
    assert Message("orders", key="k", order_key=-12).arg == -12
    assert Message("orders", key="k", order_key=-12).arg_bytes == b"-12"
    assert Message("orders", key="k", order_key="").arg_bytes == b""


@pytest.mark.feature("S-69")
@pytest.mark.parametrize(
    ("destination", "tags"),
    [
        ("orders:paid", ("paid",)),
        ("orders:paid||sent", ("paid", "sent")),
        ("orders:创建订单 || 支付", ("创建订单", "支付")),
    ],
)
def test_destination_names_topic_and_tags(destination: str, tags: tuple[str, ...]) -> None:
    message = Message(destination)
    assert (message.topic, message.tags) == ("orders", tags)


def test_destination_and_tags_together_are_refused() -> None:
    with pytest.raises(
        InvalidMessageError, match='tags: are given in the topic as well; allowed: either "topic:tags"'
    ):
        Message("orders:paid", tags=["sent"])


@pytest.mark.feature("S-67")
@pytest.mark.parametrize("tags", [["a", "b", "c"], ("a", "b", "c"), "a||b||c", iter("abc")])
def test_three_different_tags_are_all_kept(tags: Any) -> None:
    assert Message("orders", tags=tags).tags == ("a", "b", "c")


@pytest.mark.feature("S-69")
def test_a_changed_copy_of_a_message_with_a_destination_keeps_its_tags() -> None:
    message = dataclasses.replace(Message("orders:paid", key="1"), key="2")
    assert (message.topic, message.tags, message.key_bytes) == ("orders", ("paid",), b"2")


def test_headers_are_text_and_a_copy() -> None:
    given: dict[str, str | bytes | None] = {"b": b"2", "a": "支付", "none": None}
    message = Message("orders", headers=given)
    given["a"] = "changed"
    assert message.headers == {"b": "2", "a": "支付", "none": None}
    assert message.headers_json == '{"a":"支付","b":"2","none":null}'
    assert Message("orders", headers={}).headers is None


def test_delivery_time_is_kept_in_utc() -> None:
    east = timezone(timedelta(hours=8))
    assert Message("orders", deliver_at=datetime(2026, 1, 1, 8, tzinfo=east)).deliver_at == datetime(
        2026, 1, 1, tzinfo=UTC
    )
    before = datetime(2026, 1, 1, 9, tzinfo=east)
    message = Message("orders", deliver_at=datetime(2026, 1, 1, tzinfo=UTC), deliver_before=before)
    assert message.deliver_before == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_message_is_a_value() -> None:
    message = Message("orders", key="k", tags=["t"], headers={"h": "1"})
    assert message == Message("orders:t", key="k", headers={"h": "1"})
    assert pickle.loads(pickle.dumps(message)) == message
    assert hash(message) == hash(Message("orders:t", key="k"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.key = "other"  # type: ignore[misc]  # that it is refused is the point


def test_bodies_and_headers_are_not_shown() -> None:
    shown = repr(Message("orders", key="k", body="secret-1", headers={"h": "secret-2"}))
    assert "secret" not in shown
    assert "orders" in shown


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"topic": 3}, "topic: is int; allowed: str"),
    ({"topic": b"orders"}, "topic: is bytes; allowed: str"),
    ({"topic": ""}, "topic: '' is not a legal Kafka topic name; allowed: 1 to 249"),
    ({"topic": "a" * 250}, "topic: 'a+…' is not a legal"),
    ({"topic": "."}, "topic: '.' is not a legal"),
    ({"topic": ".."}, "topic: '..' is not a legal"),
    ({"topic": "or ders"}, "topic: 'or ders' is not a legal"),
    ({"topic": "订单"}, "topic: '订单' is not a legal"),
    ({"topic": "orders\n"}, "topic: .* is not a legal"),
    ({"topic": "orders:"}, "tags: contains an empty string"),
    ({"topic": ":paid"}, "topic: '' is not a legal"),
    ({"key": 3}, "key: is int; allowed: bytes, str"),
    ({"key": "\ud800"}, "key: contains a lone surrogate"),
    ({"body": {"a": 1}}, "body: is dict; allowed: bytes, str"),
    ({"body": bytearray(b"x")}, "body: is bytearray; allowed: bytes"),
    ({"order_key": 1.5}, "order_key: is float; allowed: bytes, str"),
    ({"order_key": True}, "order_key: is bool"),
    ({"headers": [("a", "b")]}, "headers: is list; allowed: a mapping"),
    ({"headers": {1: "b"}}, "headers: name 1 is int"),
    ({"headers": {"": "b"}}, "headers: contains an empty name"),
    ({"headers": {"a\0": "b"}}, "headers: .* contains NUL"),
    ({"headers": {"a": "b\0"}}, r"headers\['a'\]: .* contains NUL"),
    ({"headers": {"a": b"b\0"}}, r"headers\['a'\]: .* contains NUL"),
    ({"headers": {"a": b"\xff"}}, r"headers\['a'\]: is not UTF-8"),
    ({"headers": {"a": 1}}, r"headers\['a'\]: is int; allowed: str, bytes in UTF-8 or None"),
    ({"headers": {"a": "\udcff"}}, r"headers\['a'\]: .* contains a lone surrogate"),
    ({"headers": {"outbox-id": "1"}}, "headers: 'outbox-id' is reserved for the outbox"),
    ({"headers": {"OutBox-Own": "1"}}, "headers: 'OutBox-Own' is reserved for the outbox"),
    (
        {"headers": {"Traceparent": "1"}},
        r"headers: 'Traceparent' has a field of its own; allowed: Message\(traceparent",
    ),
    ({"tags": ["a", ""]}, "tags: contains an empty string"),
    ({"tags": ["a|b"]}, "tags: 'a|b' contains"),
    ({"tags": "a|b"}, "tags: 'a|b' contains"),
    ({"tags": "a||"}, "tags: contains an empty string"),
    ({"tags": [1]}, "tags: contains int"),
    ({"tags": ["a\0"]}, "tags: .* contains NUL"),
    ({"tags": b"a"}, "tags: is bytes"),
    ({"tags": 5}, "tags: is int"),
    ({"tags": None}, "tags: is NoneType"),
    ({"index_keys": ["a b"]}, "index_keys: 'a b' contains white space"),
    ({"index_keys": ["a\u00a0b"]}, "index_keys: .* contains white space"),
    ({"index_keys": [""]}, "index_keys: contains an empty string"),
    ({"index_keys": "ab"}, "index_keys: is str; allowed: a sequence of str"),
    ({"queue": -1}, "queue: -1 is out of range"),
    ({"queue": 2**31}, "queue: 2147483648 is out of range"),
    ({"queue": "1"}, "queue: is str; allowed: int"),
    ({"queue": True}, "queue: is bool"),
    (
        {"queue": 1, "selector": "random"},
        "queue: comes with selector 'random'; allowed: either queue or selector",
    ),
    ({"selector": ""}, "selector: is empty"),
    ({"selector": len}, "selector: is builtin_function_or_method; allowed: str"),
    ({"selector": "murmur2"}, "selector: 'murmur2' has nothing to hash"),
    ({"selector": "modulo"}, "order_key: selector 'modulo' has nothing to divide"),
    ({"selector": "modulo", "key": "o-1"}, "order_key: selector 'modulo' cannot divide 'o-1'"),
    ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at: 2026-01-01 00:00:00 has no time zone"),
    ({"deliver_at": "2026-01-01"}, "deliver_at: is str; allowed: datetime"),
    (
        {"deliver_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=8)))},
        "deliver_at: .* is out of range",
    ),
    ({"deliver_before": datetime(2026, 1, 1)}, "deliver_before: 2026-01-01 00:00:00 has no time zone"),
    ({"deliver_before": "2026-01-01"}, "deliver_before: is str; allowed: datetime"),
    (
        {"deliver_at": datetime(2026, 1, 1, tzinfo=UTC), "deliver_before": datetime(2026, 1, 1, tzinfo=UTC)},
        "deliver_before: .* is not after deliver_at",
    ),
    ({"transaction_id": 1}, "transaction_id: is int; allowed: str or None"),
    ({"transaction_id": ""}, "transaction_id: is empty"),
    ({"transaction_id": b"t"}, "transaction_id: is bytes"),
    ({"checker": ""}, "checker: is empty; allowed: text"),
    ({"checker": "a\0"}, "checker: .* contains NUL"),
    ({"biz_id": 7}, "biz_id: is int; allowed: str or None"),
    ({"biz_type": "a\0"}, "biz_type: .* contains NUL"),
    ({"biz_type": "a\0"}, "biz_type: .* contains NUL"),
    ({"biz_id": "\ud800"}, "biz_id: .* contains a lone surrogate"),
    ({"message_id": V8}, "message_id: .* is of version 8, which only the outbox makes"),
    ({"message_id": str(uuid4())}, "message_id: is str; allowed: uuid.UUID"),
    ({"traceparent": "00-abc"}, "traceparent: '00-abc' is not a W3C traceparent"),
]


@pytest.mark.feature("S-76")
@pytest.mark.parametrize(
    ("arguments", "error"), REFUSED, ids=[error.partition(";")[0] for _, error in REFUSED]
)
def test_bad_input_is_refused_by_argument_fault_and_limit(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidMessageError, match="^" + error) as caught:
        Message(**{"topic": "orders", **arguments})
    assert isinstance(caught.value, OutboxError)
    assert isinstance(caught.value, ValueError)
    assert "; allowed: " in str(caught.value)
    assert caught.value.argument == str(caught.value).partition(":")[0]


@pytest.mark.parametrize("version", [1, 4, 7])
def test_message_ids_of_other_versions_are_the_applications_own(version: int) -> None:
    id = UUID(f"01890000-0000-{version}000-8000-000000000001")
    assert Message("orders", message_id=id).message_id == id


def test_an_error_does_not_repeat_long_input() -> None:
    with pytest.raises(InvalidMessageError) as caught:
        Message("x" * 100_000)
    assert len(str(caught.value)) < 300


def test_message_cannot_be_subclassed_unnoticed() -> None:
    class Order(Message):
        """One with more fields, which no row would hold."""

    with pytest.raises(TypeError, match="cannot be subclassed"):
        Order("orders")


def test_check_headers_add_what_a_check_back_goes_by_to_the_users_headers() -> None:
    message = Message("payments", key="p-7", checker="payment", biz_id="p-7", headers={"a": b"b"})
    shown = message.with_check_headers()
    assert shown.headers == {"a": "b", "checker": "payment", "biz-id": "p-7"}
    assert dataclasses.replace(shown, headers={"a": b"b"}) == message
    assert shown.with_check_headers() == shown
    plain = Message("payments")
    assert plain.with_check_headers() == plain


@pytest.mark.parametrize("value", ["p-8", None])
def test_check_headers_refuse_a_header_that_differs(value: str | None) -> None:
    message = Message("payments", biz_id="p-7", headers={"biz-id": value})
    with pytest.raises(InvalidMessageError, match=r"headers.*another 'biz-id'.*no header 'biz-id'"):
        message.with_check_headers()
