"""Subscriptions by a function of the headers: what is skipped, and what becomes of a filter that cannot decide."""

from __future__ import annotations

import pytest

from outbox.errors import SubscriptionConflictError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, HeaderFilter, plans
from outbox.inbox.header_filters import Headers
from outbox.inbox.messages import pairs_of
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def is_german(headers: Headers) -> bool:
    return headers.get("country") == b"DE"


def produce(inbox: InboxStage, topic: str, *countries: str) -> None:
    """Produce one message of one key for each country, with its number as the body."""
    for number, country in enumerate(countries):
        inbox.produce(topic, "k", str(number), headers=(("country", country.encode()),))
    inbox.flush()


def failures(inbox: InboxStage) -> list[tuple[str, int]]:
    """State and attempts of what is parked, the first one first."""
    return inbox.conn.execute("SELECT state, attempts FROM outbox.inbox_parked ORDER BY id").fetchall()


@pytest.mark.feature("S-88")
def test_messages_that_a_filter_skips_move_the_offset(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    produce(inbox, topic, "DE", "FR", "DE", "FR", "FR")
    with inbox.consumer({topic: is_german}):
        inbox.wait_applied(2)
        wait_until(lambda: inbox.committed(topic) == 5, "the offset passes what is skipped")
    assert sorted(inbox.applied("body")) == ["0", "2"]
    assert inbox.count("outbox.inbox") == 2


def test_a_filter_runs_before_the_body_is_decoded(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce(topic, "k", b"\xff\xfe", headers=(("country", b"FR"),))
    produce(inbox, topic, "DE")
    with inbox.consumer({topic: is_german}, orderly=True):
        inbox.wait_applied(1)
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_filter_that_raises_parks_its_message_and_stops_no_other(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    seen: list[bytes | None] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.body)
        return apply(conn, message)

    def decide(headers: Headers) -> bool:
        if headers["country"] == b"??":
            raise ValueError("no such country")
        return is_german(headers)

    produce(inbox, topic, "DE", "??", "FR", "DE")
    # A header that is missing, too.
    inbox.produce(topic, "other", "4")
    inbox.flush()
    chosen = {topic: HeaderFilter("decide", decide)}
    with inbox.consumer(chosen, listener, delays=DelaySchedule.of([0])):
        inbox.wait_applied(2)
        wait_until(lambda: failures(inbox) == [("dead", 2), ("dead", 2)], "both are dead")
        wait_until(lambda: inbox.committed(topic) == 5, "the offset passes what is parked")
    assert set(seen) == {b"0", b"3"}
    assert len(seen) == 2
    assert inbox.count("outbox.inbox_parked", "fingerprint LIKE 'header filter decide: ValueError at %'") == 1
    assert inbox.count("outbox.inbox_parked", "fingerprint LIKE 'header filter decide: KeyError at %'") == 1


def test_a_retry_asks_the_filter_again_before_the_listener(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    repaired: list[int] = []

    def decide(headers: Headers) -> bool:
        if not repaired:
            raise ValueError("not yet")
        return is_german(headers)

    produce(inbox, topic, "FR", "DE", "FR", "DE")
    chosen = {topic: HeaderFilter("decide", decide)}
    with inbox.consumer(chosen, orderly=True, delays=DelaySchedule.of([0.05] * 1000)):
        wait_until(lambda: len(failures(inbox)) == 4, "the key is held, and all wait behind it")
        wait_until(lambda: failures(inbox)[0][1] > 2, "it fails again")
        assert [state for state, _ in failures(inbox)] == ["retry", "waiting", "waiting", "waiting"]
        repaired.append(1)
        inbox.wait_applied(2)
        wait_until(lambda: not failures(inbox), "nothing is parked")
    assert inbox.applied("body") == ["1", "3"]
    assert inbox.count("outbox.inbox_held_key") == 0


def test_a_message_that_failed_in_its_listener_has_passed_the_filter(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    asked: list[bytes | None] = []

    def once(headers: Headers) -> bool:
        asked.append(headers["country"])
        return len(asked) == 1

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        return apply(conn, message) if message.reconsume_times else ConsumeResult.RECONSUME_LATER

    produce(inbox, topic, "DE")
    with inbox.consumer({topic: HeaderFilter("once", once)}, listener):
        inbox.wait_applied(1)
    assert asked == [b"DE"]


def test_a_member_with_another_filter_is_refused(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer({topic: is_german}):
        wait_until(lambda: inbox.count("outbox.consumer_member"), "the member is listed")
        with pytest.raises(SubscriptionConflictError, match=f"headers by {__name__}:is_german"):
            inbox.consumer({topic: HeaderFilter("french", is_german)}).run()
        with inbox.consumer({topic: is_german}):
            wait_until(lambda: inbox.count("outbox.consumer_member") == 2, "one with the same filter joins")


def undecided(headers: Headers) -> bool:
    if headers["country"] == b"??":
        raise ValueError("no such country")
    return is_german(headers)


def test_a_copy_of_which_a_filter_cannot_decide_is_parked_under_an_id_of_its_own(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    german, unknown = (("country", b"DE"),), (("country", b"??"),)
    number = inbox.produce(topic, "k", "first", headers=german, born_at=1_700_000_000)
    inbox.produce(topic, "k", "second", message_id=number, headers=unknown, born_at=1_700_000_000)
    inbox.produce(topic, "k", "first", message_id=number, headers=german, born_at=1_700_000_000)
    inbox.flush()
    with inbox.consumer({topic: undecided}, workers=1):
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is parked")
        wait_until(lambda: inbox.committed(topic) == 3, "the offset passes it")
    found = inbox.conn.execute("SELECT message_id::text, body FROM outbox.inbox_parked").fetchall()
    assert [body for _, body in found] == [b"second"]
    assert found[0][0] != number
    assert inbox.applied("body") == ["first"]


def test_a_filter_that_could_not_decide_is_asked_whatever_failed_later(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    produce(inbox, topic, "??")
    with inbox.consumer({topic: HeaderFilter("f", undecided)}, delays=DelaySchedule.of([3600])):
        wait_until(lambda: failures(inbox) == [("retry", 1)], "it is parked")
    # As a time-out of its listener, or an error of PostgreSQL, would write it.
    inbox.conn.execute("UPDATE outbox.inbox_parked SET fingerprint = 'another', due_at = clock_timestamp()")
    with inbox.consumer({topic: HeaderFilter("f", is_german)}):
        wait_until(lambda: failures(inbox) == [], "the filter refuses it")
    assert inbox.applied() == []


def test_a_message_whose_headers_cannot_be_read_is_not_skipped(
    inbox: InboxStage, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises for a name that is not UTF-8; here for the first record."""
    topic = make_topic(partitions=1)

    def read(headers: object) -> tuple[tuple[str, bytes | None], ...]:
        found = pairs_of(headers)
        if ("country", b"unreadable") in found:
            raise SystemError("a name that is not UTF-8")
        return found

    monkeypatch.setattr("outbox.inbox.poller.pairs_of", read)
    produce(inbox, topic, "unreadable", "DE")
    with inbox.consumer({topic: is_german}, orderly=True):
        inbox.wait_applied(1)
        wait_until(lambda: failures(inbox) == [("dead", 0)], "it is a dead letter")
    assert inbox.applied("body") == ["1"]
    found = inbox.conn.execute("SELECT fingerprint FROM outbox.inbox_parked").fetchall()
    assert found == [(plans.UNREADABLE_HEADERS,)]
