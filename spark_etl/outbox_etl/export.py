"""One window into the warehouse: events, publications and new messages, then what became of older ones.

The watermark comes with the last commit. Done again, it changes nothing.

If the run dies between two commits, the watermark still names the window's lower bound. Each slice of new messages
states in its commit how far the window has come, and the next run ends that very window from there: it is closed, so
what was written of it stands. Without such a statement it reads from the lower bound, replaces the events and
publications of the dead run and merges the messages over its.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as f

from outbox_etl.arrow.few_rows import few_rows
from outbox_etl.arrow.new_messages import NewMessages
from outbox_etl.errors import ConcurrentRunError
from outbox_etl.outcome import ExportResult
from outbox_etl.reconcile.revocation import revoke
from outbox_etl.source import partition_guard
from outbox_etl.source.reader import Ids, Source, lies_among
from outbox_etl.source.window import Horizon, Part, Watermark, Window, again, following
from outbox_etl.warehouse import rows
from outbox_etl.warehouse.changes import (
    BYTES_OF_CHANGES,
    all_changes,
    of_older,
    with_checks,
    with_publications,
)
from outbox_etl.warehouse.files import Between
from outbox_etl.warehouse.marts import Say, forget
from outbox_etl.warehouse.tables import CORE, PUBLICATIONS, TRANSACTION_EVENTS, Table
from outbox_etl.warehouse.target import Merging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target


def export(spark: SparkSession, settings: Settings, target: Target, say: Say) -> ExportResult:
    """Export everything that has ended since the last run.

    Raises:
        EtlError: what stands in the way; nothing half is visible.
    """
    return _run(spark, settings, target, say, following)


def backfill(
    spark: SparkSession, settings: Settings, target: Target, say: Say, *, rebase: bool
) -> ExportResult:
    """Read all that PostgreSQL still holds again, and heal what differs; nothing is deleted from the warehouse."""
    return _run(spark, settings, target, say, functools.partial(again, rebase=rebase), rebase=rebase)


def _run(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    say: Say,
    choose: Callable[[Watermark | None, Horizon], Window],
    *,
    rebase: bool = False,
) -> ExportResult:
    source = Source(spark, settings)
    source.check()
    with source.lock(settings.target):
        attached, cluster = partition_guard.check_attached(source), source.cluster()
        target.prepare(*CORE, origin=Watermark(0, 0, cluster))
        mark = target.watermark()
        # Before a row is written: a warehouse of an older state that goes on looks like one that was never behind.
        because = "a rebase gives transactions another meaning" if rebase else ""
        revoke(source, settings.target, cluster, say, warehouse=target.identity(), mark=mark, because=because)
        now = source.horizon(of_all=choose is not following or mark is None or mark.hi == 0)
        done: ExportResult | None = None
        while True:
            window = choose(mark, now)
            if window.again:
                forget(target)
            next_ = WindowExport(source, target, window, settings, say, mark=mark, attached=attached).write()
            done = done.followed_by(next_) if done else next_
            if not window.below or window.hi >= now.hi:
                return done
            mark = target.watermark()


class WindowExport:
    """The writing of one window."""

    def __init__(
        self,
        source: Source,
        target: Target,
        window: Window,
        settings: Settings,
        say: Say,
        *,
        mark: Watermark | None,
        attached: partition_guard.Attachments,
    ) -> None:
        self._attached = attached
        self._source, self._target, self._window, self._mark = source, target, window, mark
        self._settings, self._say = settings, say
        self._events = self._published = 0
        self._left_over = False
        """Whether rows were found that a backfill had left when it died."""
        self._oldest: int | None = None
        """The lowest id of the window's events, if that is known."""
        self._held: DataFrame | None = None

    def write(self) -> ExportResult:
        """Write the window, the watermark last."""
        window, began = self._window, monotonic()
        if window.is_empty:
            self._say(f"nothing to do: no transaction has ended since {window.lo}")
            return ExportResult(self._settings.target, window.lo, window.hi)
        more = f", goes on at id {window.below}" if window.below else ""
        self._say(f"window of transactions {window.lo} to {window.hi}, ids up to {window.top}{more}")
        self._source.ids(window.top)  # (the same for all that is read)
        with ThreadPoolExecutor(3) as threads:
            events = threads.submit(self._replace_events, began)
            publications = threads.submit(self._replace_publications, began)
            new = threads.submit(self._add)
        self._events, self._published = events.result(), publications.result()
        messages = new.result()
        messages += self._merge(messages)
        seconds = monotonic() - began
        self._say(f"{messages} messages; done after {seconds:.1f} s")
        counts = self._events, self._published, messages
        return ExportResult(self._settings.target, window.lo, window.hi, *counts, round(seconds, 3))

    def _replace_events(self, began: float) -> int:
        written = self._written(TRANSACTION_EVENTS) or self._put(TRANSACTION_EVENTS)
        if written is None:
            read = self._source.events(self._window)
            written = self._replace(TRANSACTION_EVENTS, rows.events(read, self._window.hi))
        self._say(f"{written} events after {monotonic() - began:.1f} s")
        return written

    def _replace_publications(self, began: float) -> int:
        written = self._written(PUBLICATIONS) or self._put(PUBLICATIONS)
        if written is None:
            written = self._replace(PUBLICATIONS, self._read_publications())
        self._say(f"{written} publications after {monotonic() - began:.1f} s")
        return written

    def _read_publications(self) -> DataFrame:
        read = rows.publications(self._source.publications(self._window), self._window.hi)
        if self._window.again:
            # Read once, for the table and for the messages.
            read = self._held = read.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
        return read

    def _written(self, table: Table) -> int:
        """How many rows of this very window a run that died has written, in one commit; 0: they have to be written."""
        if not self._window.below:
            return 0
        return self._target.read(table).where(f"window_hi = {self._window.hi}").count()

    def _put(self, table: Table) -> int | None:
        """Write the window's rows without a job of Spark, if they are few and nobody has left any above the watermark.

        None: Spark has to. Rows of another cluster, and all of a backfill, are compared with what there is.
        """
        window = self._window
        if window.lo == 0 or window.again or window.foreign or self._may_hold(table):
            return None
        if not self._target.can_put(table):
            return None
        few = few_rows(self._source, self._settings, window, table, self._say)
        if few is None:
            return None
        self._still()
        if not self._target.put(table, few, [Between("window_hi", window.lo + 1, 1 << 62)]):
            return None
        if table is TRANSACTION_EVENTS and few.num_rows:
            self._oldest = min(few["id"].to_pylist())
        return int(few.num_rows)

    def _replace(self, table: Table, new: DataFrame) -> int:
        """Put the window's rows where a run that died may have left some.

        A backfill keeps what the source no longer holds. After one from another cluster, rows can come again when its
        xids reach theirs: they are in the table with an older window.
        """
        window, plain = self._window, [name for name in table.names if name != "window_hi"]
        stamp = f.lit(window.hi).cast("bigint").alias("window_hi")
        if window.again:
            # Each side is read once: what retention takes from PostgreSQL between two reads would be in neither.
            both = new.select(*plain).unionByName(self._target.read(table).select(*plain)).distinct()
            return self._commit(table, both.select("*", stamp), "window_hi >= 0")
        condition, in_order = f"window_hi > {window.lo}", True
        if window.lo > 0 and self._may_hold(table):
            older = self._target.read(table).where(f"{condition} AND xid < {window.lo}")
            if not older.isEmpty():  # of a backfill that died; PostgreSQL may no longer hold them
                self._left_over = True
                new, in_order = new.unionByName(older.select(*plain).select("*", stamp)), False
        if window.foreign and window.foreign >= window.lo:
            before = self._target.read(table).where(
                f"window_hi <= {window.lo} AND xid >= {window.lo} AND xid < {window.hi}"
            )
            if not before.isEmpty():
                new, in_order = new.select(*plain).subtract(before.select(*plain)).select("*", stamp), False
        return self._commit(table, new, condition, in_order=in_order)

    def _may_hold(self, table: Table) -> bool:
        """Whether a table may have rows above the watermark, of a run that died; the files say so without a job."""
        files = self._target.files(table, [Between("window_hi", self._window.lo + 1, 1 << 62)])
        return files is None or bool(files.paths)

    def _commit(self, table: Table, new: DataFrame, condition: str, *, in_order: bool = False) -> int:
        self._still()
        return self._target.replace(table, new, condition, in_order=in_order)

    def _add(self) -> int:
        """Append the messages above the highest id of the warehouse: nothing there can be theirs.

        They come with their publications and checks, as PostgreSQL has them, next to the other two tables. If the run
        dies in between, the next one finds messages up to a higher id: it replaces what there is of the window's events
        and publications, and merges the window's messages over these.
        """
        window, written = self._window, 0
        if window.again:
            return 0
        for ids in self._new:
            new = NewMessages(self._source, window, ids, self._settings, self._say)
            self._still()
            written += self._target.append(new, ids, self._come_to(ids.upper))
            self._say(f"{written} new messages, ids below {ids.upper}")
        return written

    def _come_to(self, below: int) -> Watermark | None:
        """The watermark with how far the window has come; None: what lies below is not known to be complete."""
        window = self._window
        if self._mark is None or self._has_parts or window.foreign:
            return None
        return replace(self._mark, part=Part(window.hi, window.top, below, window.wal))

    @functools.cached_property
    def _top(self) -> int:
        return self._target.top()

    @functools.cached_property
    def _new(self) -> list[Ids]:
        """The slices of new messages; ranges of ids that PostgreSQL has dropped cost no commit."""
        there = self._source.ids(self._window.top)
        first = max(self._top + 1, self._window.below)
        slices = _slices(Ids(first, self._window.top + 1), self._settings.slice_rows)
        return [each for each in slices if any(each.meets(ids) for ids in there)]

    @property
    def _has_parts(self) -> bool:
        """Whether a run that died has left new messages that no watermark states."""
        return self._top >= max(self._window.below, self._window.known + 1)

    @property
    def _is_first(self) -> bool:
        """Whether there was no message but of this window: then all are new, and complete."""
        return not self._window.again and self._window.lo == 0 and not self._has_parts

    def _is_new_only(self) -> bool:
        """Find out whether nothing happened to older messages, without a job of Spark.

        What a run that died has left may be of any message, and is merged. Rows of another cluster have positions and
        xids of their own.
        """
        window = self._window
        if window.again or window.foreign or self._left_over or self._has_parts:
            return False
        if self._events and (self._oldest is None or self._oldest <= window.known):
            return False
        return not self._source.touches_known(window)

    def _merge(self, new: int) -> int:
        """Merge what became of older messages, with the watermark; after nothing, not even that is committed."""
        window, target, written = self._window, self._target, 0
        if self._is_first or self._is_new_only():
            self._still()
            if window.lo and not window.below and not (new or self._events or self._published):
                self._say("nothing has happened: the watermark stays")
            else:
                target.mark(window.watermark())
            return 0
        top = max(window.top, self._top) if window.again else min(self._top, window.top)
        slices = _slices(Ids(0, top + 1), self._settings.slice_rows if window.again else top + 1)
        if window.below:  # (what lies between them is there, and complete)
            ranges = (Ids(0, window.known + 1 if window.lo else 0), Ids(window.below, top + 1))
            slices = [ids for ids in ranges if ids.lower < ids.upper]
        for ids in slices:
            last = ids is slices[-1]
            changes = self._changes(ids, last=last).persist(StorageLevel.DISK_ONLY)
            try:
                [found] = changes.selectExpr(
                    "count_if(is_message) n",
                    "min(id) low",
                    "max(id) high",
                    "count(*) rows",
                    f"{BYTES_OF_CHANGES} size",
                ).collect()
                self._still()
                if found["high"] is not None or window.rebase:
                    span = Ids(found["low"] or 0, (found["high"] or 0) + 1)
                    how = replace(self._merging(ids, span), rows=found["rows"], size=found["size"] or 0)
                    target.merge(changes, window.watermark() if last else None, how)
                elif last:
                    target.mark(window.watermark())
            finally:
                changes.unpersist()
            written += found["n"]
            self._say(f"{written} older messages with a new state, ids below {ids.upper}")
        return written

    def _merging(self, ids: Ids, span: Ids) -> Merging:
        window, lost = self._window, None
        if window.rebase:
            lost = [each.cut(ids) for each in self._expected if each.meets(ids)]
        return Merging(window.hi, span, whole=window.lo == 0, lost=lost, say=self._say)

    @functools.cached_property
    def _expected(self) -> list[Ids]:
        """What PostgreSQL should hold: the ranges it has, and whatever was given out above them before a fail-over.

        Ranges that were dropped are in the warehouse only, and are not lost.
        """
        top = self._window.top
        return [*self._source.ids(top), Ids(top + 1, max(top, self._top) + 1)]

    def _changes(self, ids: Ids, *, last: bool) -> DataFrame:
        window, target = self._window, self._target
        read = rows.messages(self._source.messages(window, ids), window.hi)
        told, batches = window.again or self._published > 0, self._publications()
        if window.again:
            # Nearly all were published at positions of their own slice; those that were decided much later are few.
            there = ids.hold("position")
            far = read.where(f"state = 'COMMITTED' AND NOT ({there})").select("position")
            batches = batches.where(there).unionByName(
                batches.join(f.broadcast(far), "position", "left_semi")
            )
        published = with_publications(read, batches) if told else read
        messages = with_checks(published, target.read(TRANSACTION_EVENTS))
        if not last or not (self._events or self._published):
            return all_changes(messages, None)
        older = of_older(target, window, top=self._top, asked=self._events > 0, told=told)
        changes = all_changes(messages, older)
        if window.again:
            # What PostgreSQL holds was told with its message, of this slice or of those before. What it should hold and
            # has lost has publications and checks in the warehouse still; they say nothing new of it.
            changes = changes.where(f"is_message OR NOT ({lies_among('id', self._expected)})")
        return changes

    def _publications(self) -> DataFrame:
        """The window's publications, as they were just written.

        In a backfill a message that PostgreSQL holds has those that it holds too. After a fail-over positions are given
        out again, and the warehouse keeps what was published at them before: of other messages, that were lost. Only
        where PostgreSQL has dropped a range of positions does the warehouse know better.
        """
        written = self._target.read(PUBLICATIONS).where(self._window.written)
        if self._held is None:
            return written
        dropped = f"NOT ({lies_among('position', self._expected)})"
        return self._held.unionByName(written.where(dropped))

    def _still(self) -> None:
        """Make sure that no other run has come in between, and that no history has left while it was read.

        The lock ensures the first, unless its connection broke. At the last check, all that the watermark covers has
        been read.
        """
        mark = self._target.watermark()
        if mark and self._mark:
            mark = replace(mark, part=self._mark.part)  # (that changes with each slice)
        if mark != self._mark:
            raise ConcurrentRunError("another run has moved the watermark meanwhile; run again")
        partition_guard.check_still_attached(self._source, self._attached)


def _slices(ids: Ids, rows_each: int) -> list[Ids]:
    return [
        Ids(lower, min(lower + rows_each, ids.upper))
        for lower in range(ids.lower, ids.upper, max(rows_each, 1))
    ]
