"""Message queue selectors: which partition the built-in ones pick, and what a custom one may answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from outbox import Message, Outbox
from outbox.errors import ConfigurationError, InvalidMessageError, SelectorError
from outbox.operations.custom_selectors import Selectors
from outbox.operations.sender import Sender
from outbox.operations.topics import MessageType, Topic
from outbox.partitioning import partition_of
from outbox.partitioning.java_hash import java_hash
from outbox.partitioning.murmur2 import murmur2


@pytest.mark.feature("S-82")
def test_no_selector_is_murmur2_of_the_arg() -> None:
    assert (
        partition_of(None, b"order-1", 12)
        == partition_of("murmur2", b"order-1", 12)
        == murmur2(b"order-1") % 12
    )


@pytest.mark.feature("S-101")
@pytest.mark.parametrize(
    ("arg", "queue"), [(b"0", 0), (b"7", 3), (b"+7", 3), (b"-1", 3), (b"-4", 0), (b"007", 3)]
)
def test_modulo_divides_the_id_and_is_never_negative(arg: bytes, queue: int) -> None:
    assert partition_of("modulo", arg, 4) == queue


def test_modulo_divides_ids_beyond_64_bits() -> None:
    assert partition_of("modulo", str(2**100 + 3).encode(), 7) == (2**100 + 3) % 7


@pytest.mark.feature("S-101")
@pytest.mark.parametrize(
    "arg", [b"", b"-", b"1.5", b"o-1", b" 1", b"1_000", "٣".encode(), b"\xff", b"9" * 41]
)
def test_modulo_refuses_what_is_no_whole_number_and_names_it(arg: bytes) -> None:
    with pytest.raises(
        SelectorError, match=r"order_key: selector 'modulo' cannot divide .*; allowed: a whole number"
    ):
        partition_of("modulo", arg, 4)


@pytest.mark.feature("S-101")
def test_modulo_without_an_arg_is_refused() -> None:
    with pytest.raises(SelectorError, match="nothing to divide"):
        partition_of("modulo", None, 4)


@pytest.mark.feature("S-81")
@pytest.mark.parametrize("selector", [None, "round_robin"])
def test_round_robin_gives_each_partition_the_same_share_in_turn(selector: str | None) -> None:
    assert [partition_of(selector, None, 3, n) for n in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.feature("S-81", "S-82")
def test_random_spreads_evenly_whatever_the_step_of_the_counter() -> None:
    for step in (1, 2, 8):
        share = Counter(partition_of("random", None, 8, n * step) for n in range(8000))
        assert set(share) == set(range(8))
        assert max(share.values()) - min(share.values()) < 250


def test_random_repeats_itself_for_the_same_row() -> None:
    assert len({partition_of("random", b"ignored", 64, -5) for _ in range(9)}) == 1


def test_relay_refuses_a_selector_that_only_the_application_knows() -> None:
    with pytest.raises(
        SelectorError, match="'by_region' is not a built-in selector, and the row has no queue"
    ):
        partition_of("by_region", b"eu", 4)


@pytest.mark.feature("S-101")
@pytest.mark.parametrize("answer", [-1, 4, 2.0, True, None, "1"])
def test_custom_selector_that_answers_outside_the_queues_is_refused(answer: Any) -> None:
    selectors = Selectors({"odd": lambda queues, message, arg: answer})
    with pytest.raises(
        SelectorError, match=r"'odd' returned .* for topic 'orders'; allowed: a whole number from 0 to 3"
    ):
        selectors.choose("odd", 4, Message("orders"), None)


@pytest.mark.feature("S-101")
def test_custom_selector_gets_queues_message_and_arg_as_given() -> None:
    seen: list[tuple[int, Message, Any]] = []

    def last(queues: int, message: Message, arg: Any) -> int:
        seen.append((queues, message, arg))
        return queues - 1

    message = Message("orders", key="k", order_key=7)
    assert Selectors({"last": last}).choose("last", 4, message, message.arg) == 3
    assert seen == [(4, message, 7)]


@pytest.mark.parametrize(
    ("selectors", "error"),
    [
        ({"murmur2": len}, "'murmur2' is built in"),
        ({"": len}, "'' is not a valid name"),
        ({"by_region": 3}, "'by_region' is int; allowed: a callable"),
    ],
)
def test_selectors_that_cannot_work_are_refused_when_the_outbox_is_made(selectors: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        Outbox(selectors=selectors)


def test_unknown_selector_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SelectorError, match=r"'modula' is not registered \(did you mean 'modulo'\?\)"):
        Selectors().require_usable("modula", b"7")


@pytest.mark.feature("S-82")
@pytest.mark.parametrize(
    ("text", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("order-1", -1207111310),
        ("polygenelubricants", -(2**31)),
        ("订单", 1129459),
        ("😀", 1772899),
    ],
)
def test_java_hash_is_what_java_computes(text: str, hash_code: int) -> None:
    assert java_hash(text) == hash_code
    # RocketMQ: value = arg.hashCode() % size; if (value < 0) value = Math.abs(value)
    java_remainder = int(hash_code / 7) * 7 - hash_code
    assert partition_of("java_hash", text.encode(), 7) == abs(java_remainder)


@pytest.mark.parametrize("arg", [b"\xff", b"a\0b", "\ud800".encode("utf-8", "surrogatepass")])
def test_java_hash_refuses_what_is_not_a_text(arg: bytes) -> None:
    with pytest.raises(SelectorError, match=r"'java_hash' cannot hash .*; allowed: valid UTF-8 without NUL"):
        partition_of("java_hash", arg, 4)


def test_java_hash_of_a_whole_number_is_refused() -> None:
    with pytest.raises(
        SelectorError, match=r"order_key: is int, .*; allowed: str; for a whole number: 'modulo'"
    ):
        Sender().admit(Message("orders", order_key=7, selector="java_hash"), None, ordered=False)


@pytest.mark.feature("S-82")
def test_crc32_hashes_any_bytes_also_none_at_all() -> None:
    assert [partition_of("crc32", key, 12) for key in (b"", b"order-1", b"\xff\0")] == [0, 7, 9]


@pytest.mark.feature("S-81")
@pytest.mark.parametrize("selector", ["java_hash", "crc32"])
def test_hash_without_an_arg_spreads(selector: str) -> None:
    assert [partition_of(selector, None, 3, n) for n in range(4)] == [0, 1, 2, 0]
    with pytest.raises(InvalidMessageError, match=f"{selector!r} has nothing to hash"):
        Message("orders", selector=selector)


class ByLength:
    """A selector object, as RocketMQ's MessageQueueSelector is one."""

    def __call__(self, queues: int, message: Message, arg: Any) -> int:
        return len(arg) % queues


@pytest.mark.feature("S-101")
@pytest.mark.parametrize(
    ("chooser", "name"), [(ByLength(), "ByLength"), (lambda queues, message, arg: 3, "<lambda>")]
)
def test_selector_of_a_call_chooses_and_the_row_keeps_its_name(chooser: Any, name: str) -> None:
    topic = Topic("orders", MessageType.MIXED, 4, "modulo", 1000)
    admitted = Sender().admit(Message("orders", key="abc"), topic, ordered=False, chooser=chooser)
    assert (admitted.queue, admitted.row[5], admitted.row[6]) == (3, name, "3")


@pytest.mark.feature("S-101")
@pytest.mark.parametrize("options", [{"selector": "modulo", "key": "1"}, {"queue": 0}])
def test_selector_of_a_call_is_the_only_one(options: Any) -> None:
    with pytest.raises(
        InvalidMessageError, match="is given for the call, and the message has one or a queue"
    ):
        Sender().admit(Message("orders", **options), None, ordered=False, chooser=ByLength())


@pytest.mark.parametrize("chooser", ["murmur2", 3, ByLength])
def test_selector_of_a_call_that_cannot_be_called_is_refused(chooser: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"selector: is \w+; allowed: a callable"):
        Sender().admit(Message("orders"), None, ordered=False, chooser=chooser)
