"""The pieces of the two programming models that need no database."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import outbox.rocketmq
from outbox import Message
from outbox.checking import LocalTransactionState
from outbox.rocketmq import TransactionResolution
from outbox.rocketmq.counts import COUNTERS, Counts
from outbox.rocketmq.identity import identified, new_transaction_id
from outbox.rocketmq.io import Flow, perform, perform_async
from outbox.rocketmq.results import SendStatus

FULL = Message(
    "orders:a||b||c",
    key="k",
    body="text",
    headers={"h": b"v"},
    order_key=7,
    selector="modulo",
    index_keys=["x", "y"],
    deliver_at=datetime(2030, 1, 1, tzinfo=UTC),
    checker="payment",
    biz_type="order",
    biz_id="7",
    traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
)


@pytest.mark.feature("S-67")
def test_three_tags_are_three_different_tags() -> None:
    assert identified(FULL, "t").tags == ("a", "b", "c")


def test_a_message_gets_a_transaction_id_and_nothing_else_changes() -> None:
    named, by_hand = identified(FULL, "t-1"), replace(FULL, transaction_id="t-1")
    assert named == by_hand
    for field in Message.__slots__:
        assert getattr(named, field) == getattr(by_hand, field)
    assert FULL.transaction_id is None
    assert identified(named, "t-2") is named
    assert new_transaction_id() != new_transaction_id()


@pytest.mark.feature("S-25")
def test_answers_have_rocketmqs_names() -> None:
    assert TransactionResolution is LocalTransactionState
    assert LocalTransactionState["COMMIT_MESSAGE"] is LocalTransactionState.COMMIT
    assert LocalTransactionState["ROLLBACK_MESSAGE"] is LocalTransactionState.ROLLBACK
    assert LocalTransactionState["UNKNOW"] is LocalTransactionState.UNKNOWN


@pytest.mark.feature("S-18")
def test_send_statuses_are_rocketmqs() -> None:
    assert list(SendStatus) == ["SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"]


@pytest.mark.feature("S-19")
def test_there_is_no_way_to_send_a_half_message_without_waiting_for_it() -> None:
    """Each producer and transaction has one call that stores half messages, and returns what was stored."""
    stores = {
        outbox.rocketmq.TransactionMQProducer: ("send_message_in_transaction", "TransactionSendResult"),
        outbox.rocketmq.AsyncTransactionMQProducer: ("send_message_in_transaction", "TransactionSendResult"),
        outbox.rocketmq.Producer: ("send", "HalfMessage"),
        outbox.rocketmq.AsyncProducer: ("send", "HalfMessage"),
        outbox.rocketmq.BusinessTransaction: ("send", "HalfMessage"),
        outbox.rocketmq.AsyncBusinessTransaction: ("send", "HalfMessage"),
        outbox.rocketmq.Transaction: (),
        outbox.rocketmq.AsyncTransaction: (),
        outbox.Outbox: ("prepare", "HalfMessage"),
        outbox.AsyncOutbox: ("prepare", "HalfMessage"),
    }
    words = ("send", "prepare", "oneway", "half")
    for kind, stored in stores.items():
        names = [name for name in dir(kind) if not name.startswith("_") and any(w in name for w in words)]
        plain = {"send", "send_many"} if kind in (outbox.Outbox, outbox.AsyncOutbox) else set()
        assert sorted(set(names) - plain) == sorted(stored[:1]), kind
        for name in stored[:1]:
            assert inspect.signature(getattr(kind, name)).return_annotation == stored[1], kind
            assert inspect.iscoroutinefunction(getattr(kind, name)) == kind.__name__.startswith("Async")


def test_everything_public_is_there() -> None:
    assert all(hasattr(outbox.rocketmq, name) for name in outbox.rocketmq.__all__)


def test_counters_begin_at_zero_and_are_read_at_one_moment() -> None:
    counts = Counts()
    assert dict(counts.read()) == dict.fromkeys(COUNTERS, 0)
    before = counts.read()
    counts.add("committed_total", 3)
    assert (before["committed_total"], counts["committed_total"]) == (0, 3)


def steps(log: list[Any]) -> Flow[str]:
    """A flow that survives an error of a step and says so."""
    log.append((yield lambda: 1))
    try:
        yield fails
    except LookupError as error:
        log.append(error)
    try:
        yield fails
    finally:
        log.append((yield lambda: 2))
    return "unreachable"


def fails() -> Any:
    raise LookupError("step")


def test_a_flow_is_thrown_the_errors_of_its_steps() -> None:
    log: list[Any] = []
    with pytest.raises(LookupError, match="step"):
        perform(steps(log))
    assert [type(each) for each in log] == [int, LookupError, int]


def test_an_asynchronous_flow_is_thrown_the_errors_of_its_steps() -> None:
    def awaited(log: list[Any]) -> Flow[str]:
        async def one() -> int:
            return 1

        async def wrong() -> None:
            raise LookupError("step")

        log.append((yield one))
        try:
            yield wrong
        finally:
            log.append((yield one))
        return "unreachable"

    log: list[Any] = []
    with pytest.raises(LookupError, match="step"):
        asyncio.run(perform_async(awaited(log)))
    assert log == [1, 1]


def test_a_stop_iteration_of_the_application_does_not_end_the_flow() -> None:
    def application() -> Any:
        raise StopIteration("of the application")

    def flow() -> Flow[str]:
        try:
            yield application
        except StopIteration:
            return "handled"
        return "lost"

    assert perform(flow()) == "handled"
