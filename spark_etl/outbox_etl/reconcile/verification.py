"""The verification of one window: reads in the one order that proves something, compares, certifies.

The order of the reads is the proof's. The window is closed and exported before anything is read, and no export runs
meanwhile (the same lock). What was recorded as published is read before Kafka's ends are asked for, so it must be
there. What PostgreSQL holds of unexpected records is read after Kafka: a relay publishes what was committed
before. Low watermarks are read last: what retention took away while we read counts as no longer there, not as missing.
If the run dies anywhere, there is no certificate, and the next run verifies the same window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import StorageLevel
from pyspark.sql import functions as f

from outbox_etl.errors import HEAL, ConcurrentRunError, DamagedError, SettingsError, SourceError
from outbox_etl.reconcile import certificate as certificates
from outbox_etl.reconcile import gone, local, order, orphans, revocation, unverified
from outbox_etl.reconcile.against_kafka import (
    KafkaComparison,
    bounded,
    bounds,
    ends_of,
    expected,
    hexadecimal,
    made_anew,
    ranges,
)
from outbox_etl.reconcile.against_warehouse import WarehouseComparison
from outbox_etl.reconcile.certificate import Certificate
from outbox_etl.reconcile.findings import CAP, Finding, Findings, chunks
from outbox_etl.reconcile.request import ReconcileRequest, ReconcileResult
from outbox_etl.reconcile.sources import Reader, SourceRows, postgres, warehouse, with_lost
from outbox_etl.source import partition_guard
from outbox_etl.source.reader import Ids, Source
from outbox_etl.source.window import Horizon, Watermark, Window
from outbox_etl.warehouse.changes import FEW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.reconcile.kafka import Broker
    from outbox_etl.reconcile.local import LocalRows
    from outbox_etl.warehouse.evidence import Evidence, State
    from outbox_etl.warehouse.target import Target

FOREVER = 1 << 62
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Systems:
    """The three that are compared, and what reads them."""

    spark: SparkSession
    settings: Settings
    target: Target
    broker: Broker
    say: Callable[[str], None]


class Verification:
    """The verification of one window."""

    def __init__(
        self,
        systems: Systems,
        request: ReconcileRequest,
        mark: Watermark,
        now: Horizon,
        attached: partition_guard.Attachments,
    ) -> None:
        self._spark, self._settings = systems.spark, systems.settings
        self._target, self._broker, self._say = systems.target, systems.broker, systems.say
        self._request, self._mark, self._now = request, mark, now
        self._source = Source(systems.spark, systems.settings)
        self._source.expect(now.cluster, now.hi)
        self._reader = Reader(self._source, now.top)
        self._found = Findings(request.limit, request.exactly_once)
        self._cluster, self._attached = now.cluster, attached
        self._warehouse = systems.target.identity()
        self._all = certificates.read(self._source, systems.settings.target)
        self._known = certificates.present(self._all, now.cluster)
        self._revoked = revocation.latest(self._known)
        self._cut: set[tuple[str, int]] = set()
        self._local: LocalRows | None = None
        self._evidence: Evidence = {}
        self._gone: dict[str, int] = {}

    def run(self) -> ReconcileResult:
        """Verify the window, write its certificate, and return the result."""
        began, mark = monotonic(), self._mark
        reach, ends = certificates.covered(self._known, self._warehouse)
        lo, before = (0, {}) if self._request.everything else (reach, ends)
        if lo >= mark.hi:
            self._say(f"nothing to do: everything below transaction {mark.hi} has its certificate")
            return ReconcileResult(self._settings.target, lo, mark.hi)
        window = Window(lo, mark.hi, mark.top, 0, self._cluster)
        self._say(f"window of transactions {window.lo} to {window.hi}")
        self._local = local.local_rows(self._spark, self._settings, self._say)
        with ExitStack() as last:
            if self._local:
                last.callback(self._local.close)
            return self._verify(window, before, ends, began)

    def _verify(
        self,
        window: Window,
        before: Mapping[str, Mapping[str, int]],
        ends: Mapping[str, Mapping[str, int]],
        began: float,
    ) -> ReconcileResult:
        state = self._target.state()
        source, stored, total = self._read_sources(window)
        comparison = WarehouseComparison(
            (source, stored),
            self._target,
            window,
            self._held(),
            found=self._found,
            keep=self._kept,
            local=self._local,
        )
        self._say(f"PostgreSQL and the warehouse read after {monotonic() - began:.1f} s")
        kafka, marks = self._kafka(source, stored, before, is_mirror=comparison.is_mirror)
        self._say(f"Kafka read after {monotonic() - began:.1f} s")
        later = self._kept(self._reader.later(window.hi))
        self._against_warehouse(comparison, stored, window, later)
        partitions, held = self._against_kafka(kafka, source, later)
        partition_guard.check_still_attached(self._source, self._attached)
        if not self._found.problems:
            self._evidence = self._settled(state)
        return self._conclude(window, total, partitions, {**ends, **ends_of(marks, held, ends)}, began)

    def _read_sources(self, window: Window) -> tuple[SourceRows, SourceRows, tuple[int, str]]:
        """PostgreSQL and the warehouse; how many messages the window has, and their order-free checksum."""
        if self._local:
            try:
                source, stored, (count, sum_) = self._local.read(
                    self._source, self._target, window, self._reader.ranges(), self._held()
                )
            except Exception as error:  # noqa: BLE001  (all is read again, and reports what is wrong)
                self._say(f"rows are read and compared by Spark: {local.reason(error, self._settings)}")
                self._local.close()
                self._local = None
            else:
                return source, stored, (count, hexadecimal(sum_))

        def kept(rows: SourceRows) -> SourceRows:
            return SourceRows(self._kept(rows.messages), self._kept(rows.publications), rows.events)

        source = kept(postgres(self._source, window))
        inside = source.messages.where(f"xid >= {window.lo} AND xid < {window.hi}")
        hashed = f.sum(f.col("hash").cast("decimal(20,0)"))
        # Read now, all of it, not later: see the order of the reads.
        total = inside.agg(f.count("*").alias("count"), hashed.alias("sum")).first()
        assert total is not None  # noqa: S101  (an aggregate has a row)
        stored = kept(with_lost(warehouse(self._target, window), source, self._target, self._held()))
        return source, stored, (total["count"], hexadecimal(total["sum"]))

    def _held(self) -> Sequence[Ids]:
        return self._source.ids(self._now.top)

    def _kafka(
        self,
        source: SourceRows,
        stored: SourceRows,
        before: Mapping[str, Mapping[str, int]],
        *,
        is_mirror: bool,
    ) -> tuple[KafkaComparison, Mapping[tuple[str, int], tuple[int, int]]]:
        places = self._kept(expected(source, None if is_mirror else stored))
        rows = self._local.bounds(is_mirror=is_mirror) if self._local else None
        reach = bounds(bounded(places) if rows is None else rows)
        topics = {topic for topic, _ in reach} | before.keys() | self._reader.topics()
        gone.refuse_unknown(self._request.accept_gone, topics, self._all)
        marks = self._broker.watermarks(topics)
        accepted = self._request.accept_gone
        gone.hint({topic for topic, _ in reach} - {topic for topic, _ in marks} - accepted, self._say)
        self._broker.refuse_hidden({place: of[1] for place, of in reach.items() if of}, marks)
        thinned = self._broker.compacted({topic for topic, _ in marks}) | accepted
        self._found.notes["partitions_made_anew"] += len(made_anew(marks, before))
        to_read = ranges(reach, marks, before)
        if self._local:
            here = self._local
            records, read = _reading(lambda: here.records(self._broker, to_read))
        else:
            records = self._kept(self._broker.read(self._spark, to_read))
            read = _reading(records.count)
        self._say(f"{read} records of {len(to_read)} partitions")
        after = self._broker.watermarks(topics)
        lows = [(*place, low, place[0] in thinned) for place, (low, _) in after.items()]
        lows += [(*place, 0, True) for place in reach if place[0] in accepted and place not in after]
        limits = self._spark.createDataFrame(
            lows, "topic string, partition int, low bigint, compacted boolean"
        )
        judged = places.join(limits.hint("broadcast"), ["topic", "partition"], "left")
        judged = judged.selectExpr(
            "*", "offset IS NULL OR coalesce(compacted OR offset < low, false) gone"
        ).drop("low", "compacted")
        began = {(each.topic, each.partition): each.start for each in to_read}
        self._cut = {
            place
            for place, (low, _) in after.items()
            if place[0] in thinned or 0 < low >= began.get(place, low)
        }
        suspects = self._local.kafka_suspects(lows) if self._local else None
        return KafkaComparison(
            records, self._kept(judged), self._found, self._kept, is_mirror=is_mirror, by_local=suspects
        ), marks

    def _against_warehouse(
        self, comparison: WarehouseComparison, stored: SourceRows, window: Window, later: DataFrame
    ) -> None:
        comparison.compare(later)
        comparison.sent_twice(self._reader.sent_twice(window))
        # Also by those from before a promotion: what was dropped by them was proven.
        proven = [
            each
            for each in self._all
            if each.cluster and each.cluster.system_identifier == self._cluster.system_identifier
            if not each.problems and each.warehouse == self._warehouse
        ]
        unverified.find_unverified(
            stored,
            window,
            self._held(),
            proven,
            self._found,
            accept=self._request.accept_dropped,
            local=self._local,
        )

    def _against_kafka(
        self, kafka: KafkaComparison, source: SourceRows, later: DataFrame
    ) -> tuple[list[dict[str, Any]], Mapping[tuple[str, int], int]]:
        each = None
        if kafka.suspects:
            unpublished = source.messages.join(
                source.publications.select("position"), "position", "left_anti"
            )
            states = unpublished.select("message_id", "state").unionByName(
                later.select("message_id", "state")
            )
            each = kafka.messages(states)
        self._found.settle()
        self._gone = gone.count(self._request.accept_gone, kafka, self._found)
        self._say(f"messages, publications and events compared; {self._found.problems} problems so far")
        held = (
            {}
            if each is None
            else orphans.check_orphans(
                each, self._found, self._reader, self._target, shared=self._request.shared_topics
            )
        )
        order.check_order(
            self._inversions(kafka), self._recorded(source), self._reader, self._found, self._cut
        )
        partitions = kafka.totals(self._local.totals() if self._local else None)
        for name in ("foreign", "no_longer_in_kafka"):
            self._found.notes[name] += sum(row[name] for row in partitions)
        return partitions, held

    def _settled(self, state: State) -> Evidence:
        """Name the state of the warehouse that was read, once it is on disk.

        Raises:
            ConcurrentRunError: somebody has changed it meanwhile: which state was read is not known.
        """
        evidence = state.evidence()
        if self._target.state().evidence() != evidence:
            raise ConcurrentRunError(
                "somebody changed the warehouse while it was verified, and no certificate was written: run again"
            )
        if doubt := state.doubt_files():
            raise DamagedError(f"{doubt.text}. {HEAL}")
        state.settle()
        return evidence

    def _inversions(self, kafka: KafkaComparison) -> Iterator[Sequence[Any]]:
        """What lies behind a later message of its order key, in chunks."""
        found = self._local.inversions(CAP) if self._local else None
        if found is not None:
            yield from found
            return
        units = self._kept(order.doubtful_units(kafka.places, kafka.suspects_of(kafka.places)))
        if count := units.count():
            doubtful = f.broadcast(units) if count <= FEW else units
            places = kafka.places.withColumn("key", f.expr(order.HASHED_UNIT)).join(
                doubtful, "key", "left_semi"
            )
            yield from chunks(order.inversions(kafka.records, places.drop("key")))

    def _recorded(self, source: SourceRows) -> Callable[[list[int]], Sequence[Any]]:
        def find(positions: list[int]) -> Sequence[Any]:
            rows = self._local.recorded(positions) if self._local else None
            return order.recorded(source, positions) if rows is None else rows

        return find

    def _conclude(
        self,
        window: Window,
        total: tuple[int, str],
        partitions: list[dict[str, Any]],
        ends: Mapping[str, Mapping[str, int]],
        began: float,
    ) -> ReconcileResult:
        messages, checksum = total
        names = ("postgres", "kafka", "warehouse")
        sums = {"messages": checksum}
        sums |= {
            name: hexadecimal(sum(int(row[f"{name}_checksum"], 16) for row in partitions)) for name in names
        }
        found = self._found
        if not found.problems:
            for row in partitions:
                if (
                    row["topic"] not in self._gone
                ):  # (one that was made anew has other messages at these places)
                    self._sums(row)
        certificate = Certificate(
            window.lo,
            window.hi,
            messages,
            found.problems,
            sums,
            ends,
            doubled=found.notes["doubled"],
            warehouse=self._warehouse,
            held=self._source.ids(FOREVER),
            evidence=self._evidence,
            unverified=found.notes[unverified.NOTE],
            gone=self._gone,
        )
        certificates.write(self._source, self._settings.target, self._cluster, certificate)
        return ReconcileResult(
            self._settings.target,
            window.lo,
            window.hi,
            messages=messages,
            records=sum(row["kafka"] + row["foreign"] + row["others"] for row in partitions),
            problems=found.problems,
            totals=dict(found.totals),
            found=tuple(found.listed),
            allowed=tuple(found.allowed),
            notes={name: count for name, count in sorted(found.notes.items()) if count},
            partitions=tuple(partitions),
            sums=sums,
            certified=not found.problems,
            revoked=self._revoked,
            seconds=round(monotonic() - began, 3),
        )

    def _sums(self, row: Mapping[str, Any]) -> None:
        """A net under all comparisons: what they found equal must have equal sums."""
        # History may have been dropped from PostgreSQL.
        fuller = "warehouse" if row["warehouse"] > row["postgres"] else "postgres"
        if row[f"{fuller}_checksum"] != row["kafka_checksum"]:
            text = f"{fuller} {row[f'{fuller}_checksum']}, kafka {row['kafka_checksum']}"
            self._found.add(Finding("checksum", "kafka", None, row["topic"], row["partition"], None, text))

    def _kept(self, rows: DataFrame) -> DataFrame:
        """Read once, kept on the executors' disks until the session ends.

        What goes with an executor is not read again: read later, it would prove nothing, so the run fails. And Spark
        forgets how the rows were made: to plan that again with each query took most of the time of a small window.
        """
        return rows.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)


def _reading(count: Callable[[], T]) -> T:
    """Read Kafka, and report in one line what an executor could not read."""
    try:
        return count()
    except Exception as error:
        for line in str(error).splitlines():
            if "KafkaReadError: " in line:
                raise SourceError(line.partition("KafkaReadError: ")[2]) from error
            if "No module named 'confluent_kafka'" in line:
                raise SettingsError(
                    "the executors have no confluent-kafka: install it where Spark's Python runs"
                ) from error
        raise
