"""The figures of a database: what `outbox status` and `outbox consumers ls` show, read every so often by a thread.

They describe the database and not the process, so with several relays the owner of lane 0 offers them, and the others
offer none. While lane 0 moves, two or none may for a moment: a dashboard takes the maximum, not the sum.

A read that takes long, or an error, leaves the figures as they are, with the time at which they were read. The thread
rests for twenty times as long as a read took.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox.probes import ProbeCheck
from outbox_relay.database.connections import connect
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.database.schema import require_current
from outbox_relay.monitoring.catalogue import Families
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations import consumers
from outbox_relay.operations.consumer_lag import KafkaOffsets, Lag, lags
from outbox_relay.operations.health import problems
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


@dataclass(frozen=True)
class Reading:
    """What was read at one time, in how many seconds."""

    status: Status
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
        self._kafka = kafka
        self._rest_until = 0.0
        self._began = time.monotonic()
        super().__init__(
            lambda: connect(dsn, application_name="outbox metrics"),
            [Task(self.read, 0.0, every)],
            on_defect=_report,
        )

    def read(self, conn: psycopg.Connection[Any]) -> bool:
        """Read once, unless the last read took so long that the database shall rest; return whether it succeeded."""
        began = time.monotonic()
        if began < self._rest_until:
            return True
        try:
            require_current(conn)
            status, groups = look(conn), consumers.groups(conn)
            known: Mapping[tuple[str, str], Lag] = {}
            if self._kafka is not None and groups:
                known = lags(self._kafka, consumers.positions(conn))
        except OperatorError as error:
            log.warning("figures were not read", error=" ".join(str(error).split()))
            return False
        took = time.monotonic() - began
        self.reading = Reading(status, groups, known, took=took)
        self._rest_until = time.monotonic() + REST * took
        return True

    def ready(self) -> Iterator[ProbeCheck]:
        """Yield whether the figures are young."""
        reading = self.reading
        if reading is None:
            yield ProbeCheck(self.database, False, "no figures were read yet")
        else:
            ago = time.time() - reading.at
            late = ago > LATE_S + 2 * REST * reading.took
            yield ProbeCheck(self.database, not late, f"figures were read {ago:.0f} s ago")

    def add(self, families: Families) -> None:
        """Add the metrics of the last read."""
        reading = self.reading
        if reading is None:
            return
        families.add("outbox_figures_timestamp_seconds", self.database, value=reading.at)
        families.add("outbox_figures_duration_seconds", self.database, value=reading.took)
        self._add_status(families, reading.status)
        self._add_consumers(families, reading)

    def _add_status(self, families: Families, status: Status) -> None:
        database = self.database
        for topic, share in _topics(status.topics).items():
            families.add("outbox_backlog_messages", database, topic, value=share.backlog)
            families.add("outbox_backlog_oldest_age_seconds", database, topic, value=share.oldest or 0.0)
        for lane in status.lanes:
            if lane.stopped_error is not None:
                error = lane.stopped_error.partition(":")[0][:40]
                families.add("outbox_lane_stopped", database, str(lane.lane), error, value=1)
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
                "outbox_consumer_retries": row["retries_due"] + row["retries_later"],
                "outbox_consumer_waiting": row["waiting"],
                "outbox_consumer_held_keys": row["held_keys"],
                "outbox_dead_letters": row["dead"],
            }
            lag = reading.lags.get((group, row["kafka_id"]))
            if lag is not None:
                found["outbox_consumer_lag_messages"] = lag.messages
                if lag.oldest is not None or not lag.messages:
                    found["outbox_consumer_lag_seconds"] = lag.oldest or 0.0
            for name, value in found.items():
                sums[name, group, topic] = sums.get((name, group, topic), 0) + value
            sums["outbox_consumer_members", group, topic] = row["members"]
            sums["outbox_consumer_idle_members", group, topic] = row["idle_members"]
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


def _report(defect: Exception) -> None:
    """Log a defect, which must not end what serves the metrics."""
    log.error("figures were not read", kind=type(defect).__name__, error=str(defect))
