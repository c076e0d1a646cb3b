"""The figures of a database: what `outbox status` and `outbox consumers ls` show, read every so often by a thread.

They describe the database and not the process, so with several relays the owner of lane 0 offers them, and the others
offer none. While lane 0 moves, two or none may for a moment: a dashboard takes the maximum, not the sum.

A read that takes long, or an error, leaves the figures as they are, with the time at which they were read. The thread
rests for twenty times as long as a read took.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox.errors import error_name
from outbox.probes import ProbeCheck
from outbox_relay.database.connections import DatabaseUnreachableError, connect
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.database.schema import require_current
from outbox_relay.monitoring import kept
from outbox_relay.monitoring.catalogue import Families
from outbox_relay.monitoring.kept import Kept
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations import consumers
from outbox_relay.operations.consumer_lag import KafkaOffsets, Lag, lags
from outbox_relay.operations.health import problems
from outbox_relay.operations.hold_groups import HoldGroup
from outbox_relay.operations.messages import Row
from outbox_relay.operations.status import Share, Status, look
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("metrics")

READ_EVERY_S = 15.0
REST = 20.0
LATE_S = 120.0
"""Seconds without a read after which what serves nothing but figures is not ready; more where a read takes long."""
MOST_TOPICS = 100
"""Topics with series of their own. A producer may invent topics without end; the rest are one series."""
OTHERS = "(others)"
NO_NAME = "(none)"
HOLD_METRICS = ("outbox_holds", "outbox_held_messages", "outbox_holds_oldest_age_seconds")


@dataclass(frozen=True)
class Reading:
    """What was read at one time, in how many seconds."""

    status: Status
    kept: Kept
    groups: list[Row]
    lags: Mapping[tuple[str, str], Lag]
    at: float = field(default_factory=time.time)
    took: float = 0.0


class Figures(Periodic):
    """Reads the figures of one database, between `with` and the end of its block.

    Args:
        database: the label of its metrics.
        dsn: of a user with the role outbox_reader.
        kafka: where the topics of its consumer groups are; None: without lag.
        every: seconds between two reads.
    """

    def __init__(
        self, database: str, dsn: str, kafka: KafkaOffsets | None, *, every: float = READ_EVERY_S
    ) -> None:
        self.database = database
        self.reading: Reading | None = None
        self.trouble: str | None = None
        """Why the last read failed; None: it did not."""
        self._dsn = dsn
        self._kafka = kafka
        self._rest_until = 0.0
        self._began = time.monotonic()
        super().__init__(
            self._connect,
            [Task(self.read, 0.0, every)],
            on_defect=_report,
        )

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return connect(self._dsn, application_name="outbox metrics")
        except DatabaseUnreachableError:
            self.trouble = "PostgreSQL is away"
            raise

    def read(self, conn: psycopg.Connection[Any]) -> bool:
        """Read once, unless the last read took so long that the database shall rest; return whether it succeeded."""
        began = time.monotonic()
        if began < self._rest_until:
            return True
        try:
            require_current(conn)
            status, known_kept, groups = look(conn), kept.read(conn), consumers.groups(conn)
            known: Mapping[tuple[str, str], Lag] = {}
            if self._kafka is not None and groups:
                known = lags(self._kafka, consumers.positions(conn))
        except psycopg.Error as error:
            self.trouble = error_name(error)
            raise
        except OperatorError as error:
            self.trouble = type(error).__name__
            log.warning("figures were not read", error=" ".join(str(error).split()))
            return False
        took = time.monotonic() - began
        self.reading, self.trouble = Reading(status, known_kept, groups, known, took=took), None
        self._rest_until = time.monotonic() + REST * took
        return True

    def ready(self) -> Iterator[ProbeCheck]:
        """Yield whether the figures are young, and could be read last time."""
        reading, trouble = self.reading, self.trouble
        why = f", and the last read failed: {trouble}" if trouble else ""
        if reading is None:
            yield ProbeCheck(self.database, False, f"no figures were read yet{why}")
        else:
            ago = time.time() - reading.at
            late = ago > LATE_S + 2 * REST * reading.took
            ok = not late and trouble is None
            yield ProbeCheck(self.database, ok, f"figures were read {ago:.0f} s ago{why}")

    def add(self, families: Families) -> None:
        """Add the metrics of the last read."""
        reading = self.reading
        if reading is None:
            return
        families.add("outbox_figures_timestamp_seconds", self.database, value=reading.at)
        families.add("outbox_figures_duration_seconds", self.database, value=reading.took)
        self._add_topics(families, reading)
        self._add_status(families, reading.status)
        self._add_space(families, reading)
        self._add_consumers(families, reading)

    def _add_topics(self, families: Families, reading: Reading) -> None:
        """Add what is not published, by topic: what is held is part of it."""
        database = self.database
        late = {name: Share(share.backlog, share.oldest) for name, share in reading.status.topics.items()}
        for each in reading.kept.held:
            late.setdefault(each.topic, Share()).add(each.messages, each.oldest)
        shown = _topics(late)
        for topic, share in shown.items():
            families.add("outbox_backlog_messages", database, topic, value=share.backlog)
            families.add("outbox_backlog_oldest_age_seconds", database, topic, value=share.oldest or 0.0)
        for labels, held in _holds(reading.status.holds, shown).items():
            for name, value in zip(HOLD_METRICS, held, strict=True):
                families.add(name, database, *labels, value=value)

    def _add_space(self, families: Families, reading: Reading) -> None:
        partitions, kept_ = reading.status.partitions, reading.kept
        # Ids are given out until the last one that a partition takes.
        left = partitions.seconds_until(partitions.newest_id + partitions.ids_left)
        if left is not None:
            families.add("outbox_ids_left_seconds", self.database, value=left)
        for name, value in (
            ("outbox_alarms_unsent_seconds", kept_.unsent),
            ("outbox_history_bytes", sum(one.size for one in partitions.all)),
            ("outbox_history_oldest_age_seconds", kept_.oldest),
            ("outbox_inbox_bytes", kept_.inbox_bytes),
            ("outbox_inbox_oldest_age_seconds", kept_.inbox_oldest),
        ):
            families.add(name, self.database, value=value)

    def _add_status(self, families: Families, status: Status) -> None:
        database = self.database
        for waiting in status.waiting:
            families.add("outbox_waiting_messages", database, waiting.reason, value=waiting.messages)
        overdue: Counter[str] = Counter()
        for one in status.unsettled:
            group = one.producer_group or NO_NAME
            if one.state == "DEAD":
                families.add("outbox_dead_messages", database, group, value=one.messages)
            else:
                families.add("outbox_half_messages", database, group, one.state, value=one.messages)
                families.add("outbox_half_oldest_age_seconds", database, group, one.state, value=one.oldest)
                overdue[group] += one.overdue
        for group, messages in overdue.items():
            families.add("outbox_half_messages_overdue", database, group, value=messages)
        for alarm in status.alarms:
            families.add("outbox_alarms", database, alarm.producer_group, alarm.kind, value=1)
        for kind, number in Counter(problem.kind for problem in problems(status)).items():
            families.add("outbox_problems", database, kind, value=number)
        families.add("outbox_partitions_ahead", database, value=status.partitions.ahead)

    def _add_consumers(self, families: Families, reading: Reading) -> None:
        sums: dict[tuple[str, str, str], float] = {}
        for row in reading.groups:
            # A topic that was deleted and made again has a row for each time.
            group, topic = row["consumer_group"], row["topic"] or NO_NAME
            found = {
                "outbox_consumer_retries": row["retries_failed"],
                "outbox_consumer_waiting": row["waiting"],
                "outbox_consumer_held_keys": row["held_keys"],
                "outbox_dead_letters": row["dead"],
            }
            sums["outbox_consumer_paused", group, topic] = int(row["is_paused"])
            lag = reading.lags.get((group, row["kafka_id"]))
            if lag is not None:
                found["outbox_consumer_lag_messages"] = lag.messages
                if lag.oldest is not None or not lag.messages:
                    found["outbox_consumer_lag_seconds"] = lag.oldest or 0.0
            for name, value in found.items():
                sums[name, group, topic] = sums.get((name, group, topic), 0) + value
            sums["outbox_consumer_members", group, topic] = row["members"]
            sums["outbox_consumer_idle_members", group, topic] = row["idle_members"]
            sums["outbox_consumer_full_keys", group, topic] = row["full_keys"]
        for (name, group, topic), value in sums.items():
            families.add(name, self.database, group, topic, value=value)


def observe_figures(monitoring: Monitoring, figures: Figures, *, offered: Callable[[], bool]) -> None:
    """Offer the figures of a database while `offered` returns True."""

    def metrics(families: Families) -> None:
        if offered():
            figures.add(families)

    monitoring.metrics.append(metrics)


def _topics(topics: Mapping[str | None, Share]) -> dict[str, Share]:
    """Return the topics with the largest backlogs by name, and all others as one."""
    ranked = sorted(topics.items(), key=lambda item: -item[1].backlog)
    found = {name or NO_NAME: share for name, share in ranked[:MOST_TOPICS]}
    if len(ranked) > MOST_TOPICS:
        found[OTHERS] = rest = Share()
        for _, share in ranked[MOST_TOPICS:]:
            rest.add(share.backlog, share.oldest)
    return found


def _holds(
    holds: Iterable[HoldGroup], shown: Container[str]
) -> dict[tuple[str, str, str], tuple[int, int, float]]:
    """Return how many holds there are, how many messages wait, and the age of the oldest, by kind, topic and error."""
    found: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for one in holds:
        labels = (one.kind, one.topic if one.topic in shown else OTHERS, one.code[:40])
        number, waiting, age = found.get(labels, (0, 0, 0.0))
        found[labels] = (number + one.holds, waiting + one.waiting, max(age, one.age_seconds))
    return found


def _report(defect: Exception) -> None:
    """Log a defect, which must not end what serves the metrics."""
    log.error("figures were not read", kind=type(defect).__name__, error=str(defect))
