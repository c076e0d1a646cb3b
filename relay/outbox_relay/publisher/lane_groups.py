"""Groups of lanes that share a progress, so that one statement finds the rows of all of them.

In steady state there is one group. A lane that was stopped, or taken over with another progress, is a group of
its own until it has caught up: then all groups are polled in one snapshot and become one.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from outbox_relay.publisher.listing import Listing
from outbox_relay.publisher.snapshot import START, Progress


@dataclass(slots=True)
class Group:
    """Lanes, how far they are read, and the ids of a large difference that are still to be taken.

    `listing`: where the ids behind those of `backlog` come from, while there are more.
    `careful`: up to this position one message at a time, alone on the wire, because Kafka refused one of them.
    `trial`: one message first, because the lane had stopped; the rest follows when that one is acknowledged.
    `paused`: nothing is read, because the lane waits for acknowledgements of what is in flight.
    """

    lanes: set[int]
    progress: Progress
    backlog: array[int] | None = None
    listing: Listing | None = None
    careful: int | None = None
    trial: bool = False
    paused: bool = False

    @property
    def one_by_one(self) -> bool:
        """Whether a page of it is one message."""
        return self.trial or self.careful is not None

    @property
    def is_level(self) -> bool:
        """Whether a poll from its snapshot finds its rows (no difference is open)."""
        return self.backlog is None and self.progress.base is None and self.progress != START


def by_progress(progress: Mapping[int, Progress]) -> list[Group]:
    """Put lanes of equal progress together."""
    groups: dict[Progress, Group] = {}
    for lane, known in progress.items():
        groups.setdefault(known, Group(set(), known)).lanes.add(lane)
    return list(groups.values())


def start_groups(progress: Mapping[int, Progress], stopped: Collection[int]) -> list[Group]:
    """Return the groups to begin with; each lane that was stopped by itself, with a trial."""
    going = {lane: known for lane, known in progress.items() if lane not in stopped}
    return by_progress(going) + [Group({lane}, progress[lane], trial=True) for lane in sorted(stopped)]


def merge(groups: Iterable[Group]) -> list[Group]:
    """Put level groups of equal progress together, but not those that go one by one or wait; leave empty ones out."""
    merged: list[Group] = []
    level: dict[Progress, Group] = {}
    for group in groups:
        if not group.lanes:
            continue
        if group.is_level and not group.one_by_one and not group.paused:
            twin = level.setdefault(group.progress, group)
            if twin is not group:
                twin.lanes |= group.lanes
                continue
        merged.append(group)
    return merged


def end_care(groups: Iterable[Group]) -> None:
    """Take the mark from the groups of a turn that came past their refused message.

    Not sooner than its delivery: were the mark taken away while the message is on the wire, a second refusal would
    count as the first, and the lane would never stop.
    """
    for group in groups:
        passed = group.is_level or (group.progress.after or 0) >= (group.careful or 0)
        if group.careful is not None and not group.paused and passed:
            group.careful = None
