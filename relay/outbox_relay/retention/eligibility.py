"""Eligibility: whether a range of ids is complete, final, exported, verified and old enough to be dropped.

It reads, and changes nothing. A decision holds for the moment; the removal checks again when nothing else can write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements
from outbox_relay.retention.decision import Reason, RetentionDecision
from outbox_relay.retention.evidence import EvidenceCheck
from outbox_relay.retention.ranges import Range
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import many, moment

STATEMENTS = Statements("outbox_relay/retention/eligibility.sql")

PAUSE_S = 0.05


class TargetError(OperatorError, ValueError):
    """There are no certificates of the target that is asked for."""


class WarehouseFoundError(OperatorError):
    """There are certificates of a warehouse, and the run would ignore them."""


def choose_targets(
    conn: psycopg.Connection[Any],
    name: str | None,
    *,
    without_warehouse: bool = False,
    despite_certificates: bool = False,
) -> list[str] | None:
    """Return the targets whose certificates count: the named one, or all that there are; None without a warehouse.

    Raises:
        TargetError: no target of this name has certificates.
        WarehouseFoundError: without a warehouse, and there are certificates.
    """
    targets = [row[0] for row in conn.execute(STATEMENTS["targets"]).fetchall()]
    if without_warehouse:
        if targets and not despite_certificates:
            raise WarehouseFoundError(
                f"--without-warehouse, but a warehouse has certificates: {', '.join(targets)}\n"
                "leave it out, so that only what the warehouse contains is dropped; to abandon the warehouse, add "
                "--despite-certificates"
            )
        return None
    if name is not None and targets and name not in targets:
        raise TargetError(f"--target {name!r} has no certificates; targets that have: {', '.join(targets)}")
    return targets if name is None else [name]


class Eligibility:
    """Decides about ranges over one connection; it reads the newest position and the next xid when it is created.

    Args:
        age: the retention, from the last change of a range on.
        targets: whose certificates count, each of them; empty: nothing is exported. None: nothing has to be exported.
        wait: seconds to wait for running transactions to end.
    """

    def __init__(
        self, conn: psycopg.Connection[Any], *, age: timedelta, targets: Sequence[str] | None, wait: float
    ) -> None:
        self._conn = conn
        self._age = age
        self._targets = targets
        self._wait = wait
        self._reaches: dict[str, dict[int, int]] = {}
        self._evidence = EvidenceCheck()
        conn.execute(STATEMENTS["settings"])
        # In this order, each in a statement of its own: see "closed".
        self.newest = int(self._one("newest"))
        self._ahead = int(self._one("ahead"))

    def decide(self, range_: Range, later: Sequence[Range], staying: Sequence[Range]) -> RetentionDecision:
        """Return whether a range may be dropped, and what speaks against it.

        Args:
            range_: in whatever state its tables are.
            later: the ranges behind it.
            staying: the ranges before it that are not dropped.
        """
        if range_.upper > self.newest or not later:
            # The newest range stays even if it is full: the next one is made where it ends.
            return self._short(range_, "current", f"ids are given out up to {self.newest:,} so far")
        if range_.left_by_hand:
            return self._short(range_, "detached_by_hand", "detached, and not by this command: left alone")
        if not range_.is_whole:
            there = ", ".join(sorted(range_.states))
            return self._short(range_, "incomplete", f"of its three tables there is only {there}")
        if self._on(range_, "is_young", age=self._age)[0]:
            return self._short(range_, "young", "its newest message is younger than the retention")
        reasons = [*self._unfinished(range_), *self._unsettled(range_)]
        rows, first, last, changed_at, young, position = self._on(range_, "facts", age=self._age)
        if young:
            reason = Reason("young", f"it changed at {moment(changed_at)}, within the retention")
            return RetentionDecision(range_, (reason,), rows, changed_at)
        if position is not None:
            missing, example, lowest, highest = self._on(
                range_, "published", upper=range_.upper, position=position
            )
            if missing:
                text = f"{missing:,} COMMITTED messages have no publication: outbox message show {example}"
                reasons.append(Reason("unpublished", text))
            first, last = min(first, lowest or first), max(last, highest or last)
        reasons += self._needed(range_, later, staying)
        if first is not None and self._targets is not None:
            if not self._targets:
                text = "there is no certificate of any target: outbox etl reconcile"
                reasons.append(Reason("unexported", text))
            for target in self._targets:
                reasons += self._unexported(range_, target, first, last)
            # (read when nothing else is in the way)
            for target in () if reasons else self._targets:
                reasons += self._lost(range_, target)
        return RetentionDecision(range_, tuple(reasons), rows, changed_at)

    def _unfinished(self, range_: Range) -> Iterator[Reason]:
        """Wait until nobody can insert any more; say so when somebody still can."""
        deadline = time.monotonic() + self._wait
        while True:
            row = self._conn.execute(
                STATEMENTS["closed"], {"ahead": self._ahead, "upper": range_.upper}
            ).fetchone()
            assert row is not None  # noqa: S101  (a SELECT without a table has a row)
            closed, xid, who = row
            if closed:
                return
            if time.monotonic() >= deadline:
                yield Reason(
                    "open", f"transaction {xid} still runs and may insert ({who or 'not visible to you'})"
                )
                return
            time.sleep(PAUSE_S)

    def _unsettled(self, range_: Range) -> Iterator[Reason]:
        undecided, dead, waiting, asked = self._on(
            range_, "unsettled", lower=range_.lower, upper=range_.upper
        )
        if undecided:
            yield Reason(
                "undecided", f"UNKNOWN or EXHAUSTED: {many(undecided, 'half message')}: outbox tx ls"
            )
        if dead:
            yield Reason("dead", f"DEAD: {many(dead, 'message')}: outbox message ls --status DEAD")
        if waiting:
            yield Reason("waiting", f"delayed, held or parked: {many(waiting, 'message')}")
        if asked:
            yield Reason("checking", f"a checker is asking about {many(asked, 'message')} at this moment")

    def _needed(self, range_: Range, later: Sequence[Range], staying: Sequence[Range]) -> Iterator[Reason]:
        for older in staying:
            if older.suffix not in self._reaches:
                self._reaches[older.suffix] = self._read_reaches(older, [range_, *later])
            count = self._reaches[older.suffix].get(range_.lower)
            if count:
                yield Reason(
                    "needed",
                    f"it holds the publications of {many(count, 'message')} of {older.name}, which stays",
                )

    def _read_reaches(self, older: Range, ranges: Sequence[Range]) -> dict[int, int]:
        """Count, once per range, the messages whose positions lie in later ones; new ones are beyond `newest`."""
        values = {
            "upper": older.upper,
            "lowers": [range_.lower for range_ in ranges],
            "uppers": [range_.upper for range_ in ranges],
        }
        statement = sql.SQL(STATEMENTS["reaches"]).format(message=older.table("message"))
        return dict(self._conn.execute(statement, values).fetchall())

    def _unexported(self, range_: Range, target: str, first: int, last: int) -> Iterator[Reason]:
        statement = sql.SQL(STATEMENTS["gaps"]).format()
        values = {
            "target": target,
            "first": first,
            "last": last,
            "lower": range_.lower,
            "upper": range_.upper,
        }
        gaps = self._conn.execute(statement, values).fetchall()
        if not gaps:
            return
        for name, newest, counts, present in self._conn.execute(STATEMENTS["targets"]).fetchall():
            if name != target or counts:
                continue
            text = "outbox etl backfill --rebase, then outbox etl reconcile"
            if newest is None:
                whose = f"all certificates of {target!r} are of another cluster or database"
                yield Reason("other_cluster", f"{whose}: {text}")
            else:
                whose = f"the certificates of {target!r} are of timeline {newest}, a promotion began timeline {present}"
                yield Reason("other_timeline", f"{whose}: {text}")
            return
        for name, bad in (("unverified", True), ("unexported", False)):
            found = [gap for gap in gaps if (gap[2] is not None) is bad]
            if not found:
                continue
            lower, upper, problems, revoked = found[0]
            more = f" and {len(found) - 1} more gaps" if len(found) > 1 else ""
            text = f"xids {lower} to {upper - 1}{more}"
            if revoked:
                yield Reason(name, f"the certificates of {target!r} were taken back: outbox etl reconcile")
            elif bad:
                yield Reason(name, f"{problems} problems were found in {target!r} in {text}")
            else:
                yield Reason(name, f"no certificate of {target!r} that saw this partition covers {text}")

    def _lost(self, range_: Range, target: str) -> Iterator[Reason]:
        """Hold the warehouse against the evidence of the certificates: they say what was there when they were given."""
        row = self._conn.execute(STATEMENTS["evidence"], {"target": target}).fetchone()
        assert row is not None  # noqa: S101  (one covers the range)
        if doubt := self._evidence.doubt(target, row[0], range_.lower, range_.upper):
            yield Reason("unverified", f"{target!r}: {doubt}: outbox etl reconcile")

    def _short(self, range_: Range, name: str, detail: str) -> RetentionDecision:
        return RetentionDecision(range_, (Reason(name, detail),))

    def _on(self, range_: Range, name: str, **values: Any) -> tuple[Any, ...]:
        statement = sql.SQL(STATEMENTS[name]).format(
            **{kind: range_.table(kind) for kind in ("message", "publication", "event")}
        )
        row = self._conn.execute(statement, values).fetchone()
        assert row is not None  # noqa: S101  (aggregates and scalar selects have a row)
        return tuple(row)

    def _one(self, name: str) -> Any:
        row = self._conn.execute(STATEMENTS[name]).fetchone()
        assert row is not None  # noqa: S101
        return row[0]
