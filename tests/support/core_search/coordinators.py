"""Kafka's transactions as the publisher meets them: ids that are fenced, markers, offsets that come late, strays."""

from __future__ import annotations

from dataclasses import dataclass, field

from outbox_relay.publisher.core.values import Proof

IDS = ("0", "1")
"""The transactional ids of a leader, and the partitions of its group."""
ABSENT = Proof(-1, "")
"""What a group has of which Kafka knows nothing."""


@dataclass
class Record:
    """A record in Kafka. A reader of committed messages gets no other."""

    uid: int
    topic: str
    partition: int
    status: str = "committed"


@dataclass
class Coordinator:
    """A transactional id. `prepared`: the commit is decided, and its markers are not written."""

    epoch: int = -1
    status: str = "empty"  # open, prepared, done
    records: list[Record] = field(default_factory=list)
    offset: Proof | None = None


@dataclass
class Coordinators:
    """All transactional ids, the group's offsets, and requests that are on their way."""

    flags: frozenset[str] = frozenset()
    by_id: dict[str, Coordinator] = field(default_factory=dict)
    offsets: dict[str, Proof] = field(default_factory=lambda: {"0": Proof(0, "")})
    applying: list[tuple[str, Proof]] = field(default_factory=list)
    """Offsets that a marker committed, and that the group's coordinator does not show yet."""
    stray: list[tuple[str, int]] = field(default_factory=list)
    """Requests to commit that come late: id and epoch."""

    def of(self, tid: str) -> Coordinator:
        """Return a transactional id."""
        return self.by_id.setdefault(tid, Coordinator())

    def init(self, tid: str) -> int:
        """Fence an id: abort what is open, and return the new epoch."""
        one = self.of(tid)
        if one.status == "open":
            self.abort(tid)
        one.epoch, one.status = one.epoch + 1, "empty"
        return one.epoch

    def abort(self, tid: str) -> None:
        """End a transaction without its messages. Its producer is fenced."""
        one = self.of(tid)
        for record in one.records:
            record.status = "aborted"
        one.records, one.offset, one.status = [], None, "done"
        one.epoch += 1

    def commit(self, tid: str, epoch: int) -> bool:
        """Decide to commit what is open; False for a fenced producer."""
        one = self.of(tid)
        if epoch != one.epoch or one.status not in ("open", "prepared", "done"):
            return False
        if one.status == "open":
            one.status = "prepared"
        return True

    def write_markers(self, tid: str) -> None:
        """End what is decided."""
        one = self.of(tid)
        for record in one.records:
            record.status = "committed"
        if one.offset is not None:
            place = "0" if "one offset for two producers" in self.flags else tid
            self.applying.append((place, one.offset))
        one.records, one.offset, one.status = [], None, "done"

    def apply(self) -> None:
        """Show an offset."""
        place, proof = self.applying.pop(0)
        self.offsets[place] = proof

    def is_stable(self) -> bool:
        """Return whether a reader that requires stable offsets gets them."""
        return not self.applying and all(one.offset is None for one in self.by_id.values())

    def newest(self) -> Proof:
        """Return the greatest offset of the group."""
        return max(self.offsets.values(), default=ABSENT)
