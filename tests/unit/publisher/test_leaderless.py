"""What becomes of messages that wait for a partition without a leader: claims of their topic, next to what arrived."""

from __future__ import annotations

from typing import Any, cast

import pytest

from outbox_relay.publisher import parked
from outbox_relay.publisher.batch import Batch, Slot, ignore
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.leaderless import claims_of, divide
from outbox_relay.publisher.overdue import Overdue
from outbox_relay.publisher.parked import Held
from outbox_relay.publisher.probe import PartitionState, lacks_replicas
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.topics import TopicBook
from tests.support.topic_registry import Registry, look_up

KNOWN = Progress(Snapshot(10, 10))
REASON = Unpublishable("LEADER_NOT_AVAILABLE", "topic 'sick', partition 0: no acknowledgement for 3 s")
LANE = 3


def batch(*messages: tuple[int, str, int], acknowledged: dict[str, list[int]]) -> Batch:
    """Make a lane's part of a batch: messages as (position, topic, lane), and the offsets of each topic."""
    made = Batch((3, 5), KNOWN, KNOWN)
    for position, topic, lane in messages:
        slot = made.slots.setdefault((topic, 0), Slot(topic, 0, ignore))
        slot.indexes.append(len(made.positions))
        made.positions.append(position)
        made.row_lanes.append(lane)
        made.message_ids.append(f"m{position}")
        made.ids.append(position + 1_000)
    for topic, offsets in acknowledged.items():
        made.slots[topic, 0].offsets += offsets
    return made.part(frozenset((LANE,)))


def test_what_is_acknowledged_of_a_lane_is_recorded_without_what_is_not() -> None:
    whole = batch(
        *((1, "sick", 3), (2, "well", 3), (3, "sick", 5), (4, "sick", 3), (5, "well", 5), (6, "well", 3)),
        acknowledged={"sick": [7], "well": [0, 1, 2]},
    )
    done, left = divide(whole, LANE)
    assert done.is_acknowledged
    outcome = done.outcome()
    assert sorted(zip(outcome.positions, outcome.offsets, strict=True)) == [(1, 7), (2, 0), (6, 2)]
    assert (done.lanes, done.progress, done.messages) == ((LANE,), KNOWN, 3)
    assert [(one.position, one.id, one.topic) for one in left] == [(4, 1_004, "sick")]
    assert not whole.is_acknowledged, "the batch itself is as it was"


def test_what_is_not_acknowledged_waits_for_its_topic_in_order() -> None:
    held = Held()
    _, left = divide(batch((1, "sick", 3), (2, "late", 3), (3, "sick", 3), acknowledged={}), LANE)
    claims = claims_of(held, LANE, left, REASON)
    assert [(one.position, one.number, one.reason) for one in claims] == [
        (1, -1_001, "parked"),
        (2, -1_002, "parked"),
        (3, -1_001, "parked"),
    ]
    heads = [one.head.error for one in claims if one.head is not None]
    assert heads[0] == str(REASON)
    assert heads[1].startswith("LEADER_NOT_AVAILABLE: topic 'late' was not acknowledged either")
    assert held.topics == {(LANE, "sick"): -1_001, (LANE, "late"): -1_002}


def test_what_is_not_acknowledged_joins_a_topic_that_was_parked_meanwhile() -> None:
    held = Held()
    held.park((LANE, "sick", None, None), -77)
    held.following, held.lowest = -77, 50
    _, left = divide(batch((1, "sick", 3), acknowledged={}), LANE)
    claims = claims_of(held, LANE, left, REASON)
    assert [(one.number, one.head) for one in claims] == [(-77, None)]
    assert held.lowest == 1, "the next page of its drain begins there"


@pytest.mark.parametrize(
    ("code", "parks"),
    [("LEADER_NOT_AVAILABLE", True), ("NOT_ENOUGH_REPLICAS", True), ("PARTITION_UNAVAILABLE", False)],
)
def test_a_partition_without_leader_or_replicas_parks_a_silent_one_does_not(
    code: str, *, parks: bool
) -> None:
    overdue = Overdue(cast("Any", None), patience=3.0)
    overdue._known = {("sick", 0): PartitionState("so it is", code)}
    reason = overdue._reason(cast("Any", type("Wait", (), {"partition": ("sick", 0)})))
    overdue.close()
    assert (reason.code in parked.TOPICS_FAULT) is parks
    assert str(reason) == f"{code}: topic 'sick', partition 0: no acknowledgement for 3 s: so it is"


@pytest.mark.parametrize(
    ("insync", "replicas", "least", "lacks"),
    [
        (2, 3, 2, False),
        (1, 3, 2, True),
        (1, 1, 2, False),  # Kafka requires no more than there are
        (3, 3, None, False),
        (2, 3, None, True),
    ],
)
def test_when_a_partition_lacks_replicas(
    insync: int, replicas: int, least: int | None, *, lacks: bool
) -> None:
    assert lacks_replicas(insync, replicas, least) is lacks


@pytest.mark.parametrize("lost", ["leaderless", "short"])
def test_a_parked_topic_stays_closed_until_its_partitions_can_be_written(lost: str) -> None:
    registry = Registry()
    book: TopicBook = registry.book()
    book.waking.follow([(LANE, "t")])
    registry.lost = {lost: frozenset((0,))}
    look_up(registry, book, 2)
    assert not book.waking.open
    assert book.known("t").partitions == 4, "in other lanes it is published to"
    with pytest.raises(Unpublishable, match="LEADER_NOT" if lost == "leaderless" else "NOT_ENOUGH"):
        book.require_available("t", 0)
    book.require_available("t", 1)
    registry.lost = {lost: frozenset((4,))}
    look_up(registry, book, 3)
    assert book.waking.open == {"t"}, "a partition that is not pinned does not count"
