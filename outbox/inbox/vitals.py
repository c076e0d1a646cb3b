"""How a member of a consumer group stands, as it noted it itself: making this reads no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PartitionVitals:
    """One partition that the member reads."""

    topic: str
    partition: int
    position: int
    """All below it is done."""
    end: int | None
    """Behind the last record that Kafka had when records were fetched last; None: nothing was fetched yet. While the
    partition is paused nothing is fetched, and this stands still."""
    waiting: int
    """Messages in memory."""
    running: int
    """Messages that listeners have."""
    is_paused: bool
    """Whether so much waits or runs ahead that no more is fetched."""

    @property
    def lag(self) -> int | None:
        """How many offsets are not done; None: it is not known yet."""
        return None if self.end is None else max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class ConsumerVitals:
    """One member."""

    group: str
    member: str
    partitions: tuple[PartitionVitals, ...]
    messages: Mapping[str, int]
    """Messages since the start, by what became of them: applied, discarded, refused (the group had taken them over
    before), parked (they failed, or wait behind one of their key that did), dead, gone (another member had dealt with
    them), skipped (not subscribed)."""
    retries: Mapping[str, int]
    """Retries that this member ran since the start: applied, discarded, failed, dead."""
    given_up: int
    """Listeners that ran past their time-out and have not returned."""
    held_keys: int | None
    """Keys of the whole group that are held, as counted in PostgreSQL every 10 s; None: not counted yet."""
    polled_ago: float
    """Seconds since the loop that polls Kafka made progress."""
    stored_ago: float
    """Seconds since the thread that stores positions in PostgreSQL made progress."""
    trouble: str | None
    """Why the member cannot consume now, such as a server that is away; None: it can."""
    defect: str | None
    """Why the process should be started again; None: it should not."""
    erased: int = 0
    """Messages since the start whose body was found erased: their keys were destroyed. They are discarded."""
    stopped: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Partitions that the member has and does not read, and why: Kafka has deleted messages that the group has not
    handled, and `on_gap` is "stop"."""
    paused: Mapping[str, str] = field(default_factory=dict)
    """Why topics are paused, or by "" the group; see `pause_group`. The member is ready all the same."""
    full_keys: int = 0
    """Keys of this member whose messages wait in Kafka: as many wait behind one that failed as may; see `Limits`."""

    @property
    def lag(self) -> int | None:
        """Of all partitions; None: some are not known yet, or it has none."""
        lags = [each.lag for each in self.partitions]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def in_flight(self) -> int:
        """Messages that were fetched and are not done."""
        return sum(each.waiting + each.running for each in self.partitions)
