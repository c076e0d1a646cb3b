"""When a member asks Kafka whether it is known, when it replaces its client, and what it states meanwhile."""

from __future__ import annotations

import pytest

from outbox.inbox.core.contact import AGAIN, AWAY, CONFIRM, IDLE_S, PATIENCE, UNKNOWN, Contact

SESSION = 6.0
SILENCE = SESSION + PATIENCE


@pytest.fixture
def contact() -> Contact:
    """A member that has subscribed at time 0."""
    return Contact("points", SESSION, 0.0)


def trouble_of(contact: Contact) -> str | None:
    """What it states; a call, which no earlier assertion narrows."""
    return contact.trouble


def ask(contact: Contact, now: float) -> None:
    """Ask Kafka, which has to be due at this time and not before."""
    assert [contact.is_due(when) for when in (now - 0.1, now)] == [False, True]


def test_a_silent_member_that_kafka_does_not_know_gets_another_client(contact: Contact) -> None:
    ask(contact, SILENCE)
    assert not contact.is_due(SILENCE + 100), "one question at a time"
    assert trouble_of(contact) is None, "nothing is known yet"
    assert not contact.answered(False, SILENCE + 1), "it may be joining just now"
    assert trouble_of(contact) == UNKNOWN
    ask(contact, SILENCE + 1 + CONFIRM)
    assert contact.answered(False, SILENCE + 2 + CONFIRM)
    contact.replaced(SILENCE + 2 + CONFIRM)
    assert trouble_of(contact) == UNKNOWN, "until it is heard of"
    assert not contact.is_due(2 * SILENCE + CONFIRM + 1.9), "the new client has as much time"
    contact.heard(2 * SILENCE)
    assert trouble_of(contact) is None


def test_a_client_without_brokers_is_replaced_at_the_first_reply(contact: Contact) -> None:
    ask(contact, SILENCE)
    assert contact.answered(False, SILENCE + 1, finds_no_broker=True)


def test_a_client_that_cannot_be_made_is_tried_again_soon(contact: Contact) -> None:
    ask(contact, SILENCE)
    assert contact.answered(False, SILENCE, finds_no_broker=True)
    ask(contact, SILENCE + CONFIRM)
    assert contact.answered(False, SILENCE + CONFIRM, finds_no_broker=True)


def test_a_member_that_is_heard_of_asks_nothing(contact: Contact) -> None:
    for now in range(1000):
        contact.heard(float(now))
        assert not contact.is_due(float(now))


def test_a_member_that_kafka_knows_keeps_its_client(contact: Contact) -> None:
    now = 0.0
    for _ in range(5):
        now += SILENCE
        ask(contact, now)
        assert not contact.answered(True, now)
        assert trouble_of(contact) is None


def test_a_sign_of_life_outdates_a_question(contact: Contact) -> None:
    ask(contact, SILENCE)
    contact.heard(SILENCE + 1)
    assert not contact.answered(False, SILENCE + 2, finds_no_broker=True)
    assert trouble_of(contact) is None


def test_kafka_is_asked_again_and_again_while_it_is_away(contact: Contact) -> None:
    """No client is replaced meanwhile: it would be cut off as well."""
    now = SILENCE
    for _ in range(20):
        ask(contact, now)
        assert not contact.answered(None, now)
        assert trouble_of(contact) == AWAY
        now += AGAIN
    ask(contact, now)
    assert not contact.answered(False, now)
    ask(contact, now + CONFIRM)
    assert contact.answered(False, now + CONFIRM), "it has not come back by itself"


def test_a_client_that_reports_no_broker_is_not_ready_and_keeps_its_client(contact: Contact) -> None:
    contact.lost_brokers(3.0)
    assert trouble_of(contact) == AWAY
    contact.lost_brokers(3.5)
    ask(contact, 3.0 + CONFIRM)
    assert not contact.answered(None, 9.0)
    ask(contact, 9.0 + AGAIN)
    assert not contact.answered(False, 19.0, finds_no_broker=True), "it has not been silent for long"
    ask(contact, 19.0 + CONFIRM)
    assert not contact.answered(True, 24.0)
    assert trouble_of(contact) is None


def test_a_member_without_partitions_logs_that_once_each_time(
    contact: Contact, caplog: pytest.LogCaptureFixture
) -> None:
    def known(now: float) -> None:
        assert contact.is_due(now)
        contact.answered(True, now)

    contact.reads(0, 0.0)
    known(SILENCE)
    assert caplog.messages == [], "a rebalance may take a while"
    known(2 * SILENCE)
    known(3 * SILENCE)
    [message] = caplog.messages
    assert f"has assigned no partition to it for {2 * SILENCE:.0f} s" in message
    assert "outbox consumers show points" in message
    contact.reads(3, 200.0)
    contact.reads(0, 210.0)
    known(210.0 + IDLE_S - 1)
    assert len(caplog.messages) == 1
    known(210.0 + IDLE_S + SILENCE)
    assert len(caplog.messages) == 2


def test_a_member_that_kafka_does_not_know_is_not_told_that_it_has_nothing_to_do(
    contact: Contact, caplog: pytest.LogCaptureFixture
) -> None:
    now = SILENCE
    for is_known in (None, False) * 10:
        contact.reads(0, now)
        assert contact.is_due(now)
        contact.answered(is_known, now)
        now += AGAIN
    assert caplog.messages == []
