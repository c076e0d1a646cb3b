"""Export: how fast `outbox etl run` fills a warehouse, next to one JDBC connection and to COPY into a file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench.export_plan import tables
from bench.export_report import Outcome, describe
from bench.harness.cpu import Meter
from bench.harness.report import Section
from bench.load.history import History
from bench.load.warehouse import Warehouse, copy, spark_job
from bench.plan import PARTITIONS, SCALE, Bench

LATE = 1_000
"""About so many half messages are decided late, all over the history."""
SINGLE = 10_000_000
"""Messages up to which a single connection is measured too: beyond, it would take many minutes."""
BYTES_PER_MESSAGE = 1_700
"""What a message takes on the disk at most while it is measured: PostgreSQL 600, the copy 450, two kinds of Parquet
300, Spark's own files."""
BYTES_BESIDE = 5 << 30
"""Write-ahead log of two databases, programs, and room for others."""


def run(bench: Bench) -> Section:
    """Export histories of growing size, each into a new warehouse.

    Raises:
        RuntimeError: the disk is too small, or an export did not bring every row.
    """
    sizes = list(bench.plan.export_sizes)
    usual = sizes[-1][0]
    if bench.scale:
        sizes += SCALE.export_sizes
    _need_disk(bench, sizes[-1][0])
    outcomes = []
    with (
        bench.servers.database() as dsn,
        tempfile.TemporaryDirectory(prefix="export-", dir=bench.servers.directory) as scratch,
    ):
        topic = bench.servers.topic(PARTITIONS)
        history = History(bench.servers, dsn, topic, relayed=bench.plan.export_relayed)
        for messages, rounds in sizes:
            step = Step(bench, history, dsn, Path(scratch))
            outcomes.append(step.measure(messages, rounds, usual=usual, last=messages == sizes[-1][0]))
    section = describe(outcomes, bench.plan.export_window)
    if known := [each for each in outcomes if each.parts]:
        section.tables += tables(known[0], outcomes[-1])
    return section


class Step:
    """The measurements of one size."""

    def __init__(self, bench: Bench, history: History, dsn: str, scratch: Path) -> None:
        self._bench, self._history, self._dsn, self._scratch = bench, history, dsn, scratch

    def measure(self, messages: int, rounds: int, *, usual: int, last: bool) -> Outcome:
        """Let the history grow to this size and export it; with details of the usual size and the last one."""
        bench, history = self._bench, self._history
        relayed = messages <= bench.plan.export_relayed
        how = "a relay publishes them" if relayed else "published on paper, not in Kafka"
        bench.say(f"export: writing up to {messages:,} messages; {how}")
        history.grow(messages)
        found = Outcome(history.counts(), history.bytes(), usual=messages == usual)
        details = bench.scale or bench.plan.export_details
        counts = found.counts
        bench.say(
            f"{counts.messages:,} messages, {counts.publications:,} publications, {counts.events:,} events"
        )
        warehouse = self._warehouse(messages)
        for number in range(rounds):
            jobs = [self._export, self._copy]
            if messages <= SINGLE:
                jobs.insert(1, self._single)
            for job in jobs if number % 2 == 0 else reversed(jobs):
                job(found, warehouse)
        found.files = warehouse.sizes()
        if details and found.usual:
            self._parts(found, warehouse)
            if history.in_kafka:
                self._reconcile(found, warehouse)
        if details and (found.usual or last):
            self._windows(found, warehouse, messages)
        shutil.rmtree(warehouse.path)
        return found

    def _warehouse(self, messages: int) -> Warehouse:
        return Warehouse(self._scratch / f"warehouse-{messages}", self._dsn)

    def _export(self, found: Outcome, warehouse: Warehouse) -> None:
        shutil.rmtree(warehouse.path, ignore_errors=True)
        meter = self._meter()
        exported = warehouse.export()
        exported.cpu |= meter.seconds()
        rows = (exported.messages, exported.publications, exported.events)
        wanted = (found.counts.messages, found.counts.publications, found.counts.events)
        if rows != wanted:
            raise RuntimeError(f"of {wanted} messages, publications and events {rows} were exported")
        found.exports.append(exported)
        rate, peak = found.counts.messages / exported.seconds, exported.peak / 1e6
        self._bench.say(
            f"export {rate:,.0f} messages/s ({exported.seconds:.1f} s), Java's peak {peak:,.0f} MB"
        )

    def _meter(self) -> Meter:
        return Meter({"postgres": self._bench.servers.pids["postgres"]})

    def _single(self, found: Outcome, warehouse: Warehouse) -> None:
        output = self._scratch / "single"
        meter = self._meter()
        answer = spark_job("single", self._dsn, warehouse.path, output)
        answer["cpu"] |= meter.seconds()
        shutil.rmtree(output)
        if answer["messages"] != found.counts.messages:
            raise RuntimeError(f"the single connection brought {answer['messages']} messages")
        found.singles.append(answer)
        self._say("single connection", found, answer)

    def _copy(self, found: Outcome, warehouse: Warehouse) -> None:
        file = self._scratch / "copy"
        answer = copy(self._dsn, file)
        file.unlink()
        found.copies.append(answer)
        self._say("COPY", found, answer)

    def _say(self, what: str, found: Outcome, answer: dict[str, Any]) -> None:
        rate = found.counts.messages / answer["seconds"]
        self._bench.say(f"{what} {rate:,.0f} messages/s ({answer['seconds']:.1f} s)")

    def _parts(self, found: Outcome, warehouse: Warehouse) -> None:
        self._bench.say("what a task does: reading, preparing, rewriting")
        output = self._scratch / "parts"
        found.parts = spark_job("parts", self._dsn, warehouse.path, output)
        shutil.rmtree(output)

    def _reconcile(self, found: Outcome, warehouse: Warehouse) -> None:
        """Prove what was exported; what becomes of it decides nothing of the export's figures."""
        try:
            answer = warehouse.reconcile(self._bench.servers.bootstrap_servers)
        except RuntimeError as error:
            found.reconcile = str(error)
            self._bench.say(f"reconcile failed: {error}")
            return
        found.reconcile = float(answer["seconds"])
        records, problems = answer["records"], answer["problems"]
        self._bench.say(f"reconcile: {answer['seconds']:.1f} s, {records:,} records, {problems} problems")

    def _windows(self, found: Outcome, warehouse: Warehouse, messages: int) -> None:
        """Two small windows on top: new messages only, then late decisions on messages of all ages."""
        new = self._bench.plan.export_window
        self._history.grow(messages + new)
        found.windows["new"] = warehouse.export()
        late = self._history.decide_late(LATE)
        found.windows["late"] = warehouse.export()
        found.late = late
        for name, window in found.windows.items():
            shown = f"{window.seconds:.1f} s, with Spark's start and marts {window.wall:.1f} s"
            self._bench.say(f"window of {window.messages:,} {name} messages: {shown}")


def _need_disk(bench: Bench, messages: int) -> None:
    needed = messages * BYTES_PER_MESSAGE + BYTES_BESIDE
    free = shutil.disk_usage(bench.servers.directory).free
    if free < needed:
        raise RuntimeError(
            f"{messages:,} messages need {needed / 1e9:.0f} GB below {bench.servers.directory}, {free / 1e9:.0f} GB "
            "are free: set TMPDIR to a larger disk, or leave --scale out"
        )
