"""A partition that cannot be written to: its topic is parked in the lanes that wait for it, and all else is recorded.

It has no leader, or too few in-sync replicas. What a lane waits for was read, and given to a producer, before its topic
was parked. It becomes claims of the topic all the same (see parked.py), written in the transaction that records what
else of these batches is acknowledged: as if the topic had been parked when they were read, but in doubt, because Kafka
may have it. From then on everything of the topic waits in this lane, until Kafka lists a leader, and enough in-sync
replicas, of each of its pinned partitions. Then it is drained. Schedules, which are the same for replicas:

- The process dies before that transaction: all of it is read again, from what is recorded. After it: its successor
  finds the topic parked, its messages waiting and in doubt, and passes over them.
- It is paused past its lease before it: the claims lock the lane's row, and find another epoch. After it, with the
  producer that holds the messages: see the next ones.
- The leader comes back before that producer is closed, or a request of it arrives after that: what arrives is a run
  without gaps from the first message that was not acknowledged on. The drain publishes the same run again, so first
  appearances are in order, however the two mix. Each such copy is of a message in doubt.
- An acknowledgement is learned after the claims are made: it counts no more, and the message comes again.
- The drain begins when the producer is replaced (`_burdened`) and nothing is on the wire. A message of the topic that
  is read before the topic is drained waits for it, so none overtakes what waits.
- In front of it another message of the key was acknowledged, and is recorded with the claims, or before them.
- No broker replies: nothing is parked, because no broker has stated that the partition has no leader (see overdue.py).
- The leader is lost again while the topic is drained: what was on the wire goes on waiting, in doubt (`_fail_drain`),
  and the topic is asked about later each time: a partition that comes and goes holds up a lane ever more seldom.
- Kafka's metadata are old. They show a leader that is lost: as above. They show none that is back: asked again later.
- What the lane waits for besides, of other topics, parks these as well: without that a lane would wait for ever next
  to a topic whose partitions are lost one after the other. One that can be published to is drained at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from outbox_relay.publisher.batch import Batch, Slot, ignore
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.parked import Claim, Head, Held, KeyDrain


class Unacknowledged(NamedTuple):
    """A message that was given to Kafka and is not acknowledged."""

    position: int
    id: int
    message_id: str
    topic: str


def divide(batch: Batch, lane: int) -> tuple[Batch, list[Unacknowledged]]:
    """Return what is acknowledged of a lane's part of a batch, which brings the lane as far, and what is not."""
    done = replace(
        batch, chosen=None, needs=[], positions=[], row_lanes=[], message_ids=[], ids=[], slots={}, claims=[]
    )
    done.claims += batch.claims
    left = []
    for key, slot in batch.slots.items():
        copy = done.slots[key] = Slot(slot.topic, slot.partition, ignore)
        for place, index in enumerate(slot.indexes):
            if batch.row_lanes[index] != lane:
                continue
            if place >= len(slot.offsets):
                left.append(
                    Unacknowledged(
                        batch.positions[index], batch.ids[index], batch.message_ids[index], slot.topic
                    )
                )
                continue
            copy.indexes.append(len(done.positions))
            copy.offsets.append(slot.offsets[place])
            done.positions.append(batch.positions[index])
            done.row_lanes.append(lane)
            done.message_ids.append(batch.message_ids[index])
            done.ids.append(batch.ids[index])
    done.messages = len(done.positions)
    return done, sorted(left)


def without(drain: KeyDrain | None, left: Collection[int]) -> KeyDrain | None:
    """Return what is to be recorded of a drain's page, of which these ids were not acknowledged: they go on waiting.

    A message that failed behind them is not the first of its key yet, and fails again.
    """
    if drain is None:
        return None
    done = set(drain.done).difference(left)
    return replace(drain, done=done, is_all=False, failed=None)


def claims_of(held: Held, lane: int, left: Iterable[Unacknowledged], reason: Unpublishable) -> list[Claim]:
    """Park the topics of messages in a lane; return the messages' claims.

    Args:
        held: what is parked; the topics are added to it.
        lane: the lane.
        left: its messages that are not acknowledged, in order.
        reason: why, naming the partition that has no leader.
    """
    claims = []
    heads: dict[str, Claim] = {}
    for position, id_, message_id, topic in left:
        head = None
        number = held.topics.get((lane, topic))
        if number is None and topic in heads:
            number = heads[topic].number
        elif number is None:
            number, head = -id_, Head((lane, topic, None, None), None, _error(topic, reason))
        claim = Claim(lane, position, id_, message_id, number, head)
        if head is not None:
            heads[topic] = claim
        claims.append(claim)
    for claim in heads.values():
        if claim.head is not None and claim.number is not None:
            held.park(claim.head.key, claim.number)
    for claim in claims:
        held.join(claim)
    return claims


def _error(topic: str, reason: Unpublishable) -> str:
    if reason.text.startswith(f"topic {topic!r},"):
        return str(reason)
    return (
        f"{reason.code}: topic {topic!r} was not acknowledged either, in a lane that waited for {reason.text}"
    )
