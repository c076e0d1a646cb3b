"""A producer of the exactly-once mode takes no call for done that failed a moment ago, and notes lost connections.

librdkafka may ask twice to end a transaction when a connection is lost, and a late copy would end the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from outbox_relay.publisher.core.values import Batch, Proof
from outbox_relay.publisher.hands.senders import Sender
from outbox_relay.publisher.hands.transactional import TransactionalWires

SETTINGS = {"bootstrap.servers": "127.0.0.1:9"}
LOST = "127.0.0.1:9/1: Disconnected (after 7ms in state UP)"


@pytest.mark.parametrize(("error", "is_confirmed"), [(None, True), (TimeoutError("no reply"), False)])
def test_a_call_that_failed_confirms_nothing(error: Exception | None, *, is_confirmed: bool) -> None:
    """It may fail between the question for failures and the one for its end, and is then no end of a batch."""
    sender, call = Sender({"bootstrap.servers": "127.0.0.1:9"}, "outbox-test"), Future[Any]()
    sender.call = call
    assert (sender.is_confirmed, sender.is_delivered) == (False, False), "it has not ended"
    if error is None:
        call.set_result(None)
    else:
        call.set_exception(error)
    assert (sender.is_confirmed, sender.is_delivered) == (is_confirmed, is_confirmed)
    sender.close()


@pytest.mark.parametrize(
    ("line", "is_lost"),
    [
        (LOST, True),
        (
            "127.0.0.1:9/1: Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state CONNECT)",
            False,
        ),
        ("Current transaction failed in state InTransaction: Failed to commit offsets", False),
    ],
)
def test_a_transaction_that_failed_is_no_lost_connection(line: str, *, is_lost: bool) -> None:
    """What failed it would not be known, and the next one would fail in the same way."""
    _, sender, _, _ = ending()
    sender.disturbance.note(line)
    assert sender.is_disturbed == is_lost


class Kafka:
    """A producer whose `poll` does the next thing of a list."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def poll(self, _: float) -> None:
        """Do the next one."""
        if self.steps:
            self.steps.pop(0)()


def ending() -> tuple[TransactionalWires, Sender, Kafka, Batch]:
    """Return wires whose one producer ends a transaction."""
    wires, sender, kafka = (
        TransactionalWires(SETTINGS, "outbox-test"),
        Sender(SETTINGS, "outbox-test-0"),
        Kafka(),
    )
    sender.close()
    sender.clear()
    batch = Batch(Proof(1, ""), (), is_probe=False, state="ending")
    sender.batch, sender.call, wires._senders = batch, Future(), [sender]
    sender.kafka = kafka  # type: ignore[assignment]
    return wires, sender, kafka, batch


def confirm(sender: Sender) -> None:
    """Let Kafka confirm the end."""
    assert sender.call is not None
    sender.call.set_result(None)


def test_a_connection_lost_before_the_end_was_confirmed_is_noted_first() -> None:
    """Its line comes behind the first `poll`, with the confirmation."""
    wires, sender, kafka, batch = ending()
    kafka.steps += [lambda: confirm(sender), lambda: sender.disturbance.note(LOST)]
    assert (wires.events(), wires.is_tainted) == ([], False)
    assert (wires.events(), wires.is_tainted) == ([batch], True)


def test_a_connection_that_was_lost_shortly_before_may_have_been_lost_again() -> None:
    """For half a minute librdkafka does not report the same failure of a broker again."""
    wires, sender, _, batch = ending()
    sender.disturbance.note(LOST)
    sender.clear()
    sender.batch, sender.call = batch, Future()
    confirm(sender)
    assert not sender.is_disturbed
    assert (wires.events(), wires.is_tainted) == ([batch], True)
