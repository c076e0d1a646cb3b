"""A text of a subclass of `str`, such as a member of `class Topic(str, Enum)`, means its value at every entry.

The subclass here gives something else for all that can be overridden. What arrives is compared with what the text
itself gives, and each text that is kept, or handed to a driver, is of `str` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import Message, Outbox
from outbox.checking import Listeners
from outbox.checking.answers import answer_of
from outbox.codecs import Codec
from outbox.codecs.codec import codecs_of
from outbox.errors import OutboxError
from outbox.inbox import FIRST
from outbox.inbox.header_filters import HeaderFilter
from outbox.inbox.settings import ConsumerSettings, Member, subscription_of
from outbox.operations import decide, groups, topics
from outbox.operations.idempotency import require_key
from outbox.operations.remarks import checked_remark
from outbox.operations.send import send
from outbox.rocketmq import TransactionMQProducer
from outbox.statements import ByteaArray, Statement, TextArray


class Hostile(str):
    """Lies about itself wherever a subclass can."""

    __slots__ = ()

    def __str__(self) -> str:
        return "lie"

    def __repr__(self) -> str:
        return "lie"

    def __format__(self, spec: str) -> str:
        return "lie"

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 7

    def __contains__(self, part: object) -> bool:
        return False

    def __iter__(self) -> Iterator[str]:
        return iter("lie")

    def encode(self, *args: Any) -> bytes:
        return b"lie"

    def strip(self, *args: Any) -> str:
        return "lie"

    upper = lower = strip

    def split(self, *args: Any) -> list[str]:
        return ["lie"]

    def partition(self, sep: str) -> tuple[str, str, str]:
        return ("lie", "", "")


class HostileBytes(bytes):
    """The same for bytes."""

    def __bytes__(self) -> bytes:
        return b"lie"

    def decode(self, *args: Any) -> str:
        return "lie"


class Plain(Codec):
    """Does nothing."""

    def encode(self, message: Any, body: Any) -> Any:
        raise AssertionError(message)

    def decode(self, record: Any, body: Any) -> Any:
        raise AssertionError(record)


class Colour(str, Enum):  # noqa: UP042  (as applications have it)
    """What applications have; `str(Colour.RED)` is not its value."""

    RED = "red"


def statements(plan: Generator[Statement, Any, Any]) -> list[Any]:
    """The parameters of the first statement of a plan."""
    return list(next(plan).params)


def message(text: Callable[[str], str], **fields_: Any) -> Message:
    return Message(text("orders"), **fields_)


def consumer(text: Callable[[str], str]) -> Member:
    return Member(
        text("points"),
        subscription_of({text("orders"): text("paid || sent"), text("refunds"): text("*")}),
        ConsumerSettings(
            dsn="",
            kafka={text("bootstrap.servers"): text("broker:9092")},
            consume_from=FIRST,
            dead_letter_topic=text("DLQ.points"),
        ),
        text("m-1"),
    )


def sent(text: Callable[[str], str]) -> list[Any]:
    """What the statements of a send are given, until one would need an answer that is not empty."""
    outbox = Outbox(text("shop"), selectors={text("mine"): lambda queues, message, arg: 0})
    plan = send(outbox._sender, Message("orders", text("k")), ordered=False, idempotency_key=text("once"))
    rows: list[Any] = []
    seen = [list(next(plan).params)]
    with suppress(StopIteration, OutboxError):
        while True:
            seen.append(list(plan.send(rows).params))
    return seen


def listener_places(text: Callable[[str], str]) -> Any:
    listeners = Listeners()
    listeners.register(print, checker=text("pay"))
    listeners.register(print, topic=text("orders"), tag=text("a"))
    listeners.register(print, topic=text("refunds:b"))
    return sorted(map(tuple, listeners._registered), key=repr)


ENTRIES: dict[str, Callable[[Callable[[str], str]], Any]] = {
    "topic": lambda text: Message(text("orders")),
    "topic with tags": lambda text: Message(text("orders:a||b")),
    "key": lambda text: message(text, key=text("k")),
    "body": lambda text: message(text, body=text("b")),
    "order_key": lambda text: message(text, order_key=text("o"), selector=text("java_hash")),
    "arg": lambda text: (message(text, key=text("k")).arg, message(text, order_key=text("o")).arg),
    "headers": lambda text: message(text, headers={text("name"): text("value")}),
    "tags": lambda text: (message(text, tags=[text("a"), text("b")]), message(text, tags=text("a||b"))),
    "index_keys": lambda text: message(text, index_keys=[text("i-1")]),
    "texts of a half message": lambda text: message(
        text, transaction_id=text("t"), checker=text("c"), biz_type=text("y"), biz_id=text("i")
    ),
    "traceparent": lambda text: message(text, traceparent=text("00-" + "1" * 32 + "-" + "2" * 16 + "-01")),
    "producer_group": lambda text: Outbox(text("shop")).producer_group,
    "idempotency_key": lambda text: require_key(text("once"), "shop", Message("orders")),
    "a send": sent,
    "register_topic": lambda text: statements(
        topics.register(text("orders"), 4, text("FIFO"), 1_000, text("modulo"))
    ),
    "register_group": lambda text: statements(
        groups.register(text("shop"), text("TRANSACTION"), policy=text("EXHAUSTED"))
    ),
    "remark": lambda text: checked_remark(text("why")),
    "an id as text": lambda text: statements(
        decide.commit(text("018f3b1e-0000-7000-8000-000000000001"), text("why"))
    ),
    "an answer": lambda text: answer_of(text("COMMIT")),
    "codecs": lambda text: list(codecs_of({text("orders"): Plain()}).topics),  # type: ignore[union-attr]
    "listeners": listener_places,
    "consumer": consumer,
    "subscription_json": lambda text: consumer(text).subscription_json,
    "librdkafka": lambda text: consumer(text).librdkafka,
    "header filter": lambda text: HeaderFilter(text("german"), bool),
    "producer of RocketMQ's names": lambda text: (
        TransactionMQProducer(text("shop"), "dbname=none").producer_group
    ),
}


def texts(value: Any) -> Iterator[Any]:
    """Every text and every bytes in a value."""
    if isinstance(value, str | bytes):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            if hasattr(value, one.name):
                yield from texts(getattr(value, one.name))
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from texts(pair)
    elif isinstance(value, TextArray | ByteaArray):
        yield from texts(value.items)
    elif isinstance(value, tuple | list | set | frozenset):
        for one in value:
            yield from texts(one)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_subclass_means_its_value(entry: str) -> None:
    found, wanted = ENTRIES[entry](Hostile), ENTRIES[entry](str)
    assert found == wanted
    assert list(texts(wanted)), "the entry keeps a text"
    assert {type(each) for each in texts(found)} <= {str, bytes, *(type(each) for each in texts(wanted))}
    assert Hostile not in {type(each) for each in texts(found)}


def test_bytes_of_a_subclass_mean_their_value() -> None:
    found = Message("orders", HostileBytes(b"k"), HostileBytes(b"b"), headers={"h": HostileBytes(b"v")})
    wanted = Message("orders", b"k", b"b", headers={"h": b"v"})
    for name in ("key_bytes", "body_bytes", "headers_json"):
        assert getattr(found, name) == getattr(wanted, name)
        assert type(getattr(found, name)) is type(getattr(wanted, name))


def test_a_member_of_an_enumeration_means_its_value() -> None:
    assert Outbox(Colour.RED).producer_group == "red"
    assert type(Message(Colour.RED).topic) is str
    assert consumer(lambda text: Colour.RED if text == "points" else text).librdkafka["group.id"] == "red"


@given(st.text(min_size=1, max_size=40))
def test_any_text_of_a_subclass_is_taken_or_refused_as_the_text_is(text: str) -> None:
    def outcome(value: str, make: Callable[[str], Any]) -> Any:
        try:
            return make(value)
        except Exception as error:  # noqa: BLE001
            return type(error), str(error)

    for make in (
        Message,
        lambda given: Message("t", given, given),
        lambda given: Message("t", biz_id=given),
        lambda given: Message("t", tags=given),
        lambda given: Message("t", index_keys=[given]),
        lambda given: Message("t", headers={given: given}),
        lambda given: Outbox(given).producer_group,
        lambda given: subscription_of({"t": given}),
    ):
        assert outcome(Hostile(text), make) == outcome(text, make)
