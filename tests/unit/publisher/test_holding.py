"""Which messages are held behind which key or topic, and what becomes of one that Kafka refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.errors import REFUSED, DeliveryError, Refused, Unpublishable
from outbox_relay.publisher.finder import FIELDS, RawRow
from outbox_relay.publisher.lane_groups import Care, Group
from outbox_relay.publisher.parked import (
    MOST_HELD,
    MOST_KEYS,
    OWN_FAULT,
    TOPICS_FAULT,
    Claim,
    Held,
    KeyDrain,
)
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.records import claim_of_failure
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.topic import Topic

LANE, TOPIC, KEY = 3, "t", (3, "t", None, b"k")
OF_TOPIC = (LANE, TOPIC, None, None)
LEVEL = Progress(Snapshot(20, 20))
PAUSED = Unpublishable("TOPIC_PAUSED", "by a test")
OTHER_FAULT = Unpublishable("ANY_OTHER", "which parks no topic")
TOO_LARGE, MISSING = "MSG_SIZE_TOO_LARGE: x", "UNKNOWN_TOPIC_OR_PART: x"


def row(number: int) -> RawRow:
    values: dict[str, Any] = dict.fromkeys(FIELDS)
    values |= {
        "position": number,
        "id": number,
        "lane": LANE,
        "topic": TOPIC,
        "key": b"k",
        "message_id": f"m{number}",
    }
    return tuple(values.values())


def full() -> Held:
    """Return a lane that may park no further key of the topic, and hold no further message."""
    held = Held()
    held.keys_of[LANE, TOPIC], held.messages_of[LANE, TOPIC] = MOST_KEYS, MOST_HELD
    return held


def hold(held: Held, closed: Unpublishable | None, *, drain: KeyDrain | None = None) -> Batch:
    """Hold message 5 behind the key 1, whose topic is closed or not."""
    publisher = Publisher.__new__(Publisher)
    publisher.held = held
    publisher.topics = cast("Any", SimpleNamespace(closed=lambda name: closed))
    batch = Batch((LANE,), LEVEL, LEVEL, drain=drain)
    publisher._hold(batch, row(5), 1)
    return batch


def test_a_message_of_a_parked_key_parks_its_topic_once_that_is_closed() -> None:
    """There may be no other message of the topic: held for the key, these would stop the lane in the end."""
    held = Held()
    (claim,) = hold(held, PAUSED).claims
    assert (claim.number, claim.reason) == (-5, "parked")
    assert held.topics == {(LANE, TOPIC): -5}
    assert not held.messages_of, "what waits for a topic counts to no limit"


@pytest.mark.parametrize("closed", [None, OTHER_FAULT])
def test_a_message_of_a_parked_key_is_held_for_it_while_its_topic_parks_nothing(
    closed: Unpublishable | None,
) -> None:
    held = Held()
    (claim,) = hold(held, closed).claims
    assert claim.number == 1
    assert held.messages_of[LANE, TOPIC] == 1


def test_a_message_parks_its_topic_where_its_lane_holds_too_many_of_it() -> None:
    held = full()
    (claim,) = hold(held, None).claims
    assert (claim.number, claim.reason) == (-5, "parked")
    assert claim.head is not None
    assert claim.head.error.startswith("TOO_MANY_HELD")
    assert held.messages_of[LANE, TOPIC] == MOST_HELD


def test_every_code_of_a_refusal_is_of_the_message_or_its_topic() -> None:
    assert not OWN_FAULT & TOPICS_FAULT
    for code in sorted(REFUSED | OWN_FAULT | TOPICS_FAULT):
        claim = claim_of_failure(row(5), Unpublishable(code, "why"))
        assert claim is not None, f"{code} stops a lane"
        assert claim.is_of_topic is (code in TOPICS_FAULT)


@pytest.mark.parametrize("topic", [None, "t" * 250, "t" * 40_000])
@pytest.mark.parametrize("code", ["MESSAGE_TOO_LARGE", "TOPIC_EXCEPTION", "some other"])
def test_a_message_without_a_name_that_kafka_could_have_parks_alone(topic: str | None, code: str) -> None:
    values = list(row(5))
    values[FIELDS.index("topic")] = topic
    claim = claim_of_failure(tuple(values), Unpublishable(code, "why"))
    assert claim is not None
    assert claim.head is not None
    assert (claim.number, claim.head.key[0], claim.head.key[2:]) == (5, LANE, (None, None))
    assert len(claim.head.key[1]) <= 249


def test_the_next_message_that_fails_in_a_full_topic_parks_the_topic() -> None:
    held = Held()
    held.keys_of[LANE, TOPIC] = MOST_KEYS
    claim = claim_of_failure(row(5), Unpublishable("MALFORMED", "why"))
    assert claim is not None
    wide = held.within_limits(claim)
    assert wide.head is not None
    assert (wide.number, wide.head.key) == (-5, (LANE, TOPIC, None, None))
    assert wide.head.error.startswith("TOO_MANY_PARKED")
    assert wide.head.error.endswith("MALFORMED: why")
    held.keys_of[LANE, "another"], held.keys_of[LANE, TOPIC] = MOST_KEYS, MOST_KEYS - 1
    assert held.within_limits(claim) is claim


def test_what_the_drain_of_a_topic_moves_to_a_key_stays_with_it() -> None:
    drain = KeyDrain(LANE, -1, OF_TOPIC, 0.0)
    assert [claim.number for claim in hold(full(), PAUSED, drain=drain).claims] == [1]


class Refusal:
    """A session whose message 5 was refused."""

    def __init__(self, held: Held, drain: KeyDrain | None = None, *, careful: bool = True) -> None:
        self.claimed: list[Claim] = []
        self.ended: list[KeyDrain] = []
        self.failed: list[str] = []
        batch = Batch((), LEVEL, LEVEL, drain=drain)
        session = self.session = Session.__new__(Session)
        session._groups = [Group({LANE}, LEVEL, careful=Care(5) if careful else None)]
        session._suspects = {}
        session._parked = cast("Any", SimpleNamespace(held=held))
        topics = SimpleNamespace(skips_ahead=lambda name: False)
        session._publisher = cast("Any", SimpleNamespace(unrecorded=lambda: [batch], topics=topics))
        session._recorder = cast("Any", SimpleNamespace(claim=self.claimed.append, drained=self.ended.append))
        session._waking = cast("Any", SimpleNamespace(fail=lambda topic, number: self.failed.append(topic)))
        self._of_drain = drain is not None

    def park(self, reason: str, *, alone: bool = True) -> list[int]:
        """Let it be refused; return the lanes that are left to others."""
        refused = Refused(5, "m5", TOPIC, reason, row(5) if alone else None, of_drain=self._of_drain)
        return [*self.session._park_refused({LANE: refused})]

    @property
    def numbers(self) -> list[int | None]:
        return [claim.number for claim in self.claimed]


def test_a_message_refused_in_the_drain_of_its_topic_parks_its_key_without_a_limit() -> None:
    """The drains of the keys wait for the topic: it would wait for room among them for ever."""
    refusal = Refusal(full(), KeyDrain(LANE, -1, OF_TOPIC, 0.0))
    assert not refusal.park(TOO_LARGE)
    assert refusal.numbers == [5]
    assert not refusal.ended, "the topic is drained behind it"


def test_a_topic_refused_in_its_drain_stays_parked_and_is_tried_later() -> None:
    refusal = Refusal(Held(), KeyDrain(LANE, -1, OF_TOPIC, 0.0))
    assert not refusal.park(MISSING)
    assert not refusal.numbers
    assert [(one.number, one.failed is not None, one.is_all) for one in refusal.ended] == [(-1, True, False)]
    assert refusal.failed == [TOPIC]


@pytest.mark.parametrize("is_parked", [True, False])
def test_a_key_whose_topic_is_refused_in_its_drain_waits_for_the_topic(*, is_parked: bool) -> None:
    """Its message is sound, so the request stays; the topic is parked, if it is not yet."""
    held = full()
    if is_parked:
        held.park(OF_TOPIC, -2)
    refusal = Refusal(held, KeyDrain(LANE, 1, KEY, 0.0))
    assert not refusal.park(MISSING)
    assert refusal.numbers == ([] if is_parked else [-5])
    assert not refusal.ended, "its request would be done"


def test_a_message_refused_in_the_drain_of_its_key_is_its_head() -> None:
    refusal = Refusal(Held(), KeyDrain(LANE, 1, KEY, 0.0, done=(4,), is_all=True))
    assert not refusal.park(TOO_LARGE)
    (ended,) = refusal.ended
    assert ended.failed is not None
    assert (ended.failed.id, ended.failed.number, ended.done, ended.is_whole) == (5, 1, (), False)
    assert not refusal.numbers


def test_of_a_page_of_a_drain_nothing_fails_before_it_is_alone() -> None:
    refusal = Refusal(Held(), KeyDrain(LANE, 1, KEY, 0.0))
    assert not refusal.park(TOO_LARGE, alone=False)
    assert refusal.session._suspects == {1: 5}
    assert not refusal.numbers
    assert not refusal.ended


def test_a_refused_message_parks_its_key_when_it_was_alone() -> None:
    assert Refusal(Held()).park(TOO_LARGE) == []
    refusal = Refusal(full())
    assert refusal.park(TOO_LARGE) == []
    assert refusal.numbers == [-5], "or its topic, where that is full"
    assert Refusal(Held(), careful=False).park(TOO_LARGE) == [LANE]
    assert Refusal(Held()).park(TOO_LARGE, alone=False) == [LANE]


class FailingProducers:
    """Kafka refuses the first message while the second is handed over; after that the producer takes none."""

    def __init__(self) -> None:
        self.main = self
        self.lists: dict[str, Any] = {}
        self.ended = None
        self._delivered: list[Any] = []

    def of(self, _name: str, _limit: int) -> FailingProducers:
        return self

    def produce(
        self, _name: str, _body: bytes, _key: bytes, _partition: int, delivered: Any, **_: Any
    ) -> None:
        if self._delivered:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self._delivered.append(delivered)

    def poll(self, _seconds: float) -> None:
        while self._delivered:
            self._delivered.pop()(KafkaError(KafkaError.INVALID_RECORD), None)


def test_a_message_refused_while_its_page_is_produced_tells_what_was_visible() -> None:
    """Up to there its topic goes carefully; what has committed since goes in pages."""
    known = {TOPIC: Topic(TOPIC, 1, None, 1_000_000)}
    topics = SimpleNamespace(changes=SimpleNamespace(), known=known.__getitem__, doubt=known.pop)
    publisher = Publisher(cast("Any", FailingProducers()), cast("Any", topics))
    with pytest.raises(DeliveryError) as raised:
        publisher.publish([row(1), row(2)], LEVEL, LEVEL, [LANE], seen=Snapshot(15, 15))
    assert raised.value.refused[LANE].position == 1
    assert raised.value.refused[LANE].seen == Snapshot(15, 15)
