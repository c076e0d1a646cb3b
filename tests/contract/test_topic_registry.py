"""Topics as `send` meets them: registered types, pinned partitions, custom selectors, memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox import Message, MessageType, Topic
from outbox.errors import (
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    SelectorError,
    WrongMessageTypeError,
)
from outbox.partitioning.selectors import BUILT_IN
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def region(queues: int, message: Message, arg: Any) -> int:
    return len(str(arg)) % queues


@pytest.mark.feature("S-80")
def test_topic_is_registered_once_and_read_back(session: Session) -> None:
    topic = session.register_topic(
        "orders", 12, message_type="FIFO", max_message_bytes=2000, selector="modulo"
    )
    assert topic == Topic("orders", MessageType.FIFO, 12, "modulo", 2000)
    found = session.execute(
        "SELECT name, message_type, partitions, selector, max_message_bytes, skip_ahead FROM outbox.topic"
    )
    assert found == [tuple(topic)]


@pytest.mark.feature("S-80")
def test_registration_may_change_all_but_the_partition_count(session: Session) -> None:
    session.register_topic("orders", 12)
    assert (
        session.register_topic("orders", 12, message_type=MessageType.NORMAL).message_type
        is MessageType.NORMAL
    )
    with pytest.raises(InvalidTopicError, match="'orders' is pinned to 12, not 24; allowed: 12"):
        session.register_topic("orders", 24, message_type="DELAY")
    assert session.execute("SELECT partitions, message_type FROM outbox.topic") == [(12, "NORMAL")]


@pytest.mark.feature("S-80", "S-101")
def test_registering_again_resets_nothing_that_is_not_given(session: Session) -> None:
    first = session.register_topic(
        "orders", 12, message_type="FIFO", max_message_bytes=2000, selector="modulo"
    )
    assert session.register_topic("orders", 12) == first
    assert session.register_topic("orders", 12, selector="modulo") == first
    assert session.register_topic("orders", 12, max_message_bytes=3000).selector == "modulo"


def test_a_topic_without_order_skips_ahead_until_that_is_taken_back(session: Session) -> None:
    assert session.register_topic("clicks", 12, skip_ahead=True).skip_ahead is True
    assert session.register_topic("clicks", 12, max_message_bytes=2000).skip_ahead is True
    assert session.register_topic("clicks", 12, message_type="NORMAL", skip_ahead=False).skip_ahead is False
    assert session.execute("SELECT skip_ahead FROM outbox.topic") == [(False,)]


def test_a_topic_of_type_fifo_skips_nothing(session: Session) -> None:
    refusal = "skip_ahead: topic 'orders' would be of type FIFO, .*allowed: False, or another type"
    with pytest.raises(InvalidTopicError, match=refusal):
        session.register_topic("orders", 12, message_type="FIFO", skip_ahead=True)
    session.register_topic("orders", 12, message_type="FIFO")
    with pytest.raises(InvalidTopicError, match=refusal):
        session.register_topic("orders", 12, skip_ahead=True)
    session.register_topic("orders", 12, message_type="MIXED", skip_ahead=True)
    with pytest.raises(InvalidTopicError, match=refusal):
        session.register_topic("orders", 12, message_type="FIFO")
    with pytest.raises(InvalidTopicError, match="skip_ahead: 'yes'; allowed: True or False"):
        session.register_topic("orders", 12, skip_ahead="yes")
    assert session.execute("SELECT message_type, skip_ahead FROM outbox.topic") == [("MIXED", True)]


@pytest.mark.feature("S-80", "S-101")
def test_a_registered_selector_changes_only_when_moved_keys_are_asked_for(session: Session) -> None:
    session.register_topic("orders", 12, selector="modulo")
    repair = "outbox topic alter orders --selector murmur2 --move-keys"
    with pytest.raises(InvalidTopicError, match=f"'orders' is pinned to modulo, not murmur2; .*{repair}"):
        session.register_topic("orders", 12, selector="murmur2")
    assert session.execute("SELECT selector FROM outbox.topic") == [("modulo",)]
    assert session.register_topic("orders", 12, selector="murmur2", move_keys=True).selector == "murmur2"
    session.register_topic("plain", 12)
    with pytest.raises(InvalidTopicError, match="'plain' is pinned to murmur2, not modulo"):
        session.register_topic("plain", 12, selector="modulo")


@pytest.mark.feature("S-80")
def test_a_pinned_partition_count_names_the_command_that_changes_it(session: Session) -> None:
    session.register_topic("orders", 12)
    with pytest.raises(InvalidTopicError, match="run: outbox topic alter orders --partitions 24 --move-keys"):
        session.register_topic("orders", 24)
    assert session.register_topic("orders", 24, move_keys=True).partitions == 24


@pytest.mark.feature("S-74")
@pytest.mark.parametrize(
    ("type", "message", "options"),
    [
        ("NORMAL", Message("orders", key="k", order_key="o"), {}),
        ("NORMAL", Message("orders", key="k"), {"ordered": True}),
        ("FIFO", Message("orders"), {}),
        ("DELAY", Message("orders", key="k"), {}),
        ("TRANSACTION", Message("orders", key="k"), {}),
        ("FIFO", Message("orders", key="k", deliver_at=LATER), {}),
    ],
)
def test_wrong_type_is_refused_before_anything_is_written(
    session: Session, type: str, message: Message, options: dict[str, bool]
) -> None:
    session.register_topic("orders", 4, message_type=type)
    with pytest.raises(
        WrongMessageTypeError, match=f"'orders' is of type {type}, the message of type .*; allowed: "
    ):
        session.send(message, **options)
    with pytest.raises(WrongMessageTypeError):
        session.send_many([message], **options)
    assert session.execute("SELECT count(*) FROM outbox.message") == [(0,)]


def test_topic_that_is_not_registered_takes_everything(session: Session) -> None:
    session.send(Message("orders", key="k", order_key="o", deliver_at=LATER, queue=10_000))


def test_queue_beyond_the_partitions_is_refused(session: Session) -> None:
    session.register_topic("orders", 4)
    session.send(Message("orders", queue=3))
    with pytest.raises(
        InvalidMessageError, match="queue: 4 is out of range for topic 'orders'; allowed: 0 to 3"
    ):
        session.send(Message("orders", queue=4))


def test_limit_of_the_topic_holds(session: Session) -> None:
    session.register_topic("orders", 4, max_message_bytes=1000)
    session.send(Message("orders", body=b"x" * 700))
    with pytest.raises(
        MessageTooLargeError, match=r"too many for topic 'orders'; allowed: up to 1,000 bytes"
    ):
        session.send(Message("orders", body=b"x" * 900))
    session.register_topic("large", 4, max_message_bytes=2_000_000)
    session.send(Message("large", body=b"x" * 1_900_000))


@pytest.mark.feature("S-82", "S-101")
def test_custom_selector_chooses_over_the_pinned_partitions(make_session: MakeSession) -> None:
    session = make_session(selectors={"by_length": region})
    session.register_topic("orders", 4)
    receipts = [session.send(Message("orders", key="x" * n, selector="by_length")) for n in range(6)]
    receipts += session.send_many([Message("orders", key="k", order_key=12345, selector="by_length")])
    assert [receipt.queue for receipt in receipts] == [0, 1, 2, 3, 0, 1, 1]
    found = session.execute("SELECT queue, selector, order_key FROM outbox.message ORDER BY id")
    assert found[-1] == (1, "by_length", b"12345")
    assert [row[0] for row in found] == [receipt.queue for receipt in receipts]


@pytest.mark.feature("S-101")
def test_selector_of_a_call_places_its_messages(session: Session) -> None:
    session.register_topic("orders", 4)
    receipts = [session.send(Message("orders", key="four"), selector=region)]
    receipts += session.send_many([Message("orders", key="a"), Message("orders", key="ab")], selector=region)
    receipts += [session.send(Message("orders", key="abc"), ordered=True, selector=region)]
    assert [receipt.queue for receipt in receipts] == [0, 1, 2, 3]
    found = session.execute("SELECT queue, selector FROM outbox.message ORDER BY id")
    assert found == [(0, "region"), (1, "region"), (2, "region"), (3, "region")]


@pytest.mark.feature("S-82")
@pytest.mark.parametrize("selector", BUILT_IN)
def test_built_in_selector_is_left_to_the_relay(session: Session, selector: str) -> None:
    session.register_topic("orders", 4)
    assert session.send(Message("orders", key="7", selector=selector)).queue is None
    assert session.execute("SELECT selector, queue FROM outbox.message") == [(selector, None)]


def test_selector_of_the_topic_is_the_default(make_session: MakeSession) -> None:
    session = make_session(selectors={"by_length": region})
    session.register_topic("counted", 4, selector="modulo")
    session.register_topic("measured", 4, selector="by_length")
    session.send_many(
        [Message("counted", key="7"), Message("measured", key="123"), Message("measured", queue=1)]
    )
    found = session.execute("SELECT selector, queue FROM outbox.message ORDER BY id")
    assert found == [("modulo", None), ("by_length", 3), (None, 1)]


@pytest.mark.parametrize(
    ("selector", "message", "error"),
    [
        ("modulo", Message("orders", key="o-1"), "selector 'modulo' cannot divide 'o-1'"),
        ("modulo", Message("orders"), "selector 'modulo' has nothing to divide"),
        ("by_size", Message("orders", key="7"), "'by_size' is not registered"),
    ],
)
def test_message_that_the_topics_selector_cannot_place_is_refused(
    session: Session, selector: str, message: Message, error: str
) -> None:
    session.register_topic("orders", 4, selector=selector)
    with pytest.raises(SelectorError, match=error):
        session.send(message)
    session.send(Message("orders", queue=1))


def test_custom_selector_needs_a_registered_topic(make_session: MakeSession) -> None:
    session = make_session(selectors={"by_length": region})
    with pytest.raises(
        SelectorError, match=r"topic 'orders', which is not registered; allowed: register_topic\("
    ):
        session.send(Message("orders", key="k", selector="by_length"))


def test_unknown_selector_is_refused(session: Session) -> None:
    with pytest.raises(
        SelectorError, match="'by_size' is not registered; allowed: murmur2, modulo, random, round_robin"
    ):
        session.send(Message("orders", key="k", selector="by_size"))


def test_what_a_custom_selector_raises_passes_through(make_session: MakeSession) -> None:
    session = make_session(selectors={"fails": lambda queues, message, arg: {}[arg]})
    session.register_topic("orders", 4)
    with pytest.raises(KeyError, match="nowhere"):
        session.send(Message("orders", key="nowhere", selector="fails"))


def test_registry_is_read_once_for_many_sends(session: Session, observer: Session) -> None:
    session.send(Message("orders"))
    session.register_topic("returns", 4)
    session.send(Message("returns"))
    session.commit()
    observer.execute("ALTER TABLE outbox.topic RENAME TO hidden")
    session.send_many([Message("orders"), Message("returns")])


def test_registration_is_seen_by_another_outbox_at_its_next_look(
    make_session: MakeSession, session: Session
) -> None:
    other = make_session(topic_ttl=0)
    other.send(Message("orders"))
    session.register_topic("orders", 4, message_type="DELAY")
    session.commit()
    with pytest.raises(WrongMessageTypeError):
        other.send(Message("orders"))
