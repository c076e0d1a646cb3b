"""Groups of lanes that share a progress, so that one statement finds the rows of all of them.

A group can be split: a topic with more than a page of messages is read apart, from a list of its own, so that the
messages of other topics do not wait behind it. Order exists inside a topic and key only, so two topics need no common
snapshot. At any time each topic of a lane belongs to one group of the split. What is recorded of the lanes meanwhile is
the least progress of all these groups, marked as partial: publications lie beyond it. See docs/adr/0071. Schedules:

- The process dies while a topic is apart, between any two lines: its successor starts at the recorded floor, and reads
  the difference without what has a publication. So nothing is lost, and published twice is only what was on the wire.
- It dies when the parts are one again and nothing was recorded since: the same; the difference holds nothing new.
- A lane stops, is set aside or is to be given back: it leaves all groups of its split (they share a set of lanes), and
  goes on, here or with its next owner, from the floor, as after a crash; it is read when all of it is recorded.
- The hashes of two topics are equal: they are read apart together.
- Kafka refuses a message: in its lane the topic of that message becomes a part of its own, which goes one message at
  a time up to it; the other topics of the lane go on in pages. The part lists what was visible when the message was
  read, so what the topic has in front of it was on the wire. What has committed since comes behind the list, in
  pages, even with lower positions, as it would have without the refusal. The producer is new, so until the message
  comes again nothing of its topic in this lane overtakes it. The process dies: its successor goes on from the floor,
  in pages, until Kafka refuses the message again. The lane stops at it, or is set aside: it keeps its place and its
  snapshot. Where no progress is recorded, the list of all that was never published knows no topics: the whole lane
  goes one by one.

In steady state there is one group. A lane that was stopped, or taken over with another progress, is a group of
its own until it has caught up: then all groups are polled in one snapshot and become one.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox_relay.publisher.listing import Listing
from outbox_relay.publisher.read_ahead import ListAhead
from outbox_relay.publisher.snapshot import START, Progress, Snapshot


class Care(NamedTuple):
    """Up to which message one at a time, alone on the wire: Kafka refused that one."""

    position: int
    seen: Snapshot | None = None
    """What was visible when that message was read."""


Careful = Mapping[int | None, Care]
"""The care of a lane by hash of the topic; by None: of all topics."""


@dataclass(slots=True, eq=False)
class Split:
    """Lanes of which some topics, by their hashes, are read apart."""

    topics: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Group:
    """Lanes, how far they are read, and the ids of a large difference that are still to be taken.

    `listing`: where the ids behind those of `backlog` come from, while there are more.
    `careful`: it goes one message at a time for a while.
    `trial`: one message first, because the lane had stopped; the rest follows when that one is acknowledged.
    `paused`: nothing is read, because the lane waits for acknowledgements of what is in flight.
    """

    lanes: set[int]
    progress: Progress
    backlog: array[int] | None = None
    listing: Listing | None = None
    careful: Care | None = None
    trial: bool = False
    paused: bool = False
    split: Split | None = None
    """The split that it is a part of. All parts hold the same set of lanes."""
    topic: int | None = None
    """The hash of the topic that it reads; None: all topics but those that are read apart."""
    ahead: ListAhead | None = None
    """The list of that topic, while it is taken."""
    looks: int = 1
    """How many rows are read for its next page while it goes one by one."""
    served: int = 0
    """When a page of that list was taken, as a number that grows."""

    @property
    def is_listed(self) -> bool:
        """Whether it takes a topic that is read apart from a list ahead."""
        return self.topic is not None and not self.is_level and not self.one_by_one

    @property
    def apart(self) -> frozenset[int]:
        """The hashes of the topics that others of its split read."""
        return frozenset() if self.split is None or self.topic is not None else frozenset(self.split.topics)

    def end_list(self) -> None:
        """Leave a list of all topics, of which all that was taken is recorded, and go on from its floor."""
        if self.topic is None and not self.one_by_one and self.progress.as_floor != self.progress:
            self.progress = self.progress.as_floor
            self.backlog = self.listing = None

    def read_apart(self, topics: Iterable[int], snapshot: Snapshot) -> list[Group]:
        """Return groups that read these topics up to `snapshot`, each by a list; this one reads all others.

        This group must be level.
        """
        split = self.split = self.split or Split()
        known = self.progress
        split.topics.update(topics)
        open_ = Progress(snapshot, known.snapshot, 0, known.is_partial)
        return [Group(self.lanes, open_, split=split, topic=topic) for topic in topics]

    @property
    def one_by_one(self) -> bool:
        """Whether a page of it is one message; what waits or has expired may be in front of it."""
        return self.trial or self.careful is not None

    @property
    def care(self) -> Careful:
        """How far it goes carefully."""
        return {} if self.careful is None else {self.topic: self.careful}

    @property
    def is_level(self) -> bool:
        """Whether a poll from its snapshot finds its rows (no difference is open)."""
        return self.backlog is None and self.progress.base is None and self.progress != START

    @property
    def is_read(self) -> bool:
        """Whether all that its snapshot sees is read: no difference is open, and it does not go on from a floor."""
        return self.is_level and not self.progress.is_partial


def by_progress(progress: Mapping[int, Progress]) -> list[Group]:
    """Put lanes of equal progress together; a partial open difference is gone on with from its floor.

    Of another one, all up to its position is published, and what lies behind it is listed without a comparison.
    """
    groups: dict[Progress, Group] = {}
    for lane, recorded in progress.items():
        known = recorded.as_floor if recorded.is_partial else recorded
        groups.setdefault(known, Group(set(), known)).lanes.add(lane)
    return list(groups.values())


def start_groups(progress: Mapping[int, Progress], stopped: Collection[int]) -> list[Group]:
    """Return the groups to begin with; each lane that was stopped by itself, with a trial."""
    going = {lane: known for lane, known in progress.items() if lane not in stopped}
    return by_progress(going) + [Group({lane}, progress[lane], trial=True) for lane in sorted(stopped)]


def of_lane(
    lane: int, known: Progress, careful: Careful, *, trial: bool = False, paused: bool = False
) -> list[Group]:
    """Return the groups of a lane that goes on by itself: one, or a split where only some topics go carefully."""
    if not careful or None in careful:
        return [Group({lane}, known, careful=careful.get(None), trial=trial, paused=paused)]
    floor = known.as_floor
    lanes, split = {lane}, Split({topic for topic in careful if topic is not None})
    return [
        Group(lanes, floor, split=split, paused=paused),
        *(
            Group(lanes, floor, split=split, topic=topic, careful=care, paused=paused)
            for topic, care in careful.items()
        ),
    ]


def care_of(groups: Iterable[Group]) -> dict[int, dict[int | None, Care]]:
    """Return how far each lane goes carefully."""
    found: dict[int, dict[int | None, Care]] = {}
    for group in groups:
        for lane in group.lanes if group.care else ():
            found.setdefault(lane, {}).update(group.care)
    return found


def caught_up(groups: Sequence[Group]) -> set[int]:
    """Return the lanes that are read up to a snapshot: not those that go on from a floor, and are not read since."""
    behind = [
        one for one in groups if not one.is_level or one.paused or one.one_by_one or one.progress.is_partial
    ]
    lanes = set[int]().union(*(group.lanes for group in groups))
    return lanes.difference(*(group.lanes for group in behind))


def merge(groups: Sequence[Group]) -> list[Group]:
    """Put level groups of equal progress together, but not those that go one by one or wait; leave empty ones out."""
    merged: list[Group] = []
    level: dict[Progress, Group] = {}
    for group in groups:
        if not group.lanes:
            continue
        if group.is_level and not group.one_by_one and not group.paused:
            if group.split is None:
                twin = level.setdefault(group.progress, group)
                if twin is not group:
                    twin.lanes |= group.lanes
                    continue
            elif group.topic is not None and _rejoin(group, groups):
                continue
        merged.append(group)
    return merged


def _rejoin(part: Group, groups: Iterable[Group]) -> bool:
    """Give a topic back to the rest of its split, if both were polled in one snapshot."""
    rest = next((one for one in groups if one.split is part.split and one.topic is None), None)
    if (
        rest is None
        or not rest.is_level
        or rest.progress != part.progress
        or part.split is None
        or part.topic is None
    ):
        return False
    part.split.topics.discard(part.topic)
    if not part.split.topics:
        rest.split = None
    return True


def floor_of(parts: Iterable[Progress]) -> Progress:
    """Return how far all topics are published, from the progress of each part of a split.

    The snapshots are of one session.
    """
    oldest = min((part.floor for part in parts), key=lambda one: one.age)
    return Progress(oldest, is_partial=True)


def end_care(groups: Iterable[Group]) -> None:
    """Take the mark from the groups of a turn that came past their refused message.

    What is left of a part of a split is listed once more, ahead: the list so far is of the session. Not sooner than
    its delivery: were the mark taken away while the message is on the wire, a second refusal would count as the
    first, and the lane would never stop.
    """
    for group in groups:
        if group.careful is None or group.paused:
            continue
        if group.is_level or (group.progress.after or 0) >= group.careful.position:
            group.careful = None
            if group.topic is not None:
                group.backlog = group.listing = None
