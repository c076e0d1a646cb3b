"""Message queue selectors: which partition the built-in ones pick, and what a custom one may answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from outbox import ConfigurationError, Message, Outbox, SelectorError, partition_of
from outbox.operations.custom_selectors import Selectors
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
    with pytest.raises(SelectorError, match="'by_region' is no built-in and the row names no queue"):
        partition_of("by_region", b"eu", 4)


@pytest.mark.feature("S-101")
@pytest.mark.parametrize("answer", [-1, 4, 2.0, True, None, "1"])
def test_custom_selector_that_answers_outside_the_queues_is_refused(answer: Any) -> None:
    selectors = Selectors({"odd": lambda queues, message, arg: answer})
    with pytest.raises(
        SelectorError, match=r"'odd' answered .* for topic 'orders'; allowed: a whole number from 0 to 3"
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
        ({"": len}, "'' is no name"),
        ({"by_region": 3}, "'by_region' is int; allowed: a callable"),
    ],
)
def test_selectors_that_cannot_work_are_refused_when_the_outbox_is_made(selectors: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        Outbox(selectors=selectors)


def test_unknown_selector_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SelectorError, match=r"'modula' is not registered \(did you mean 'modulo'\?\)"):
        Selectors().require_usable("modula", b"7")
