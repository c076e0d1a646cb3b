"""The recorder: writes publications, and so gives the barrier that the next batch needs.

Nothing may be published that the database could still forget: a transaction that committed with
synchronous_commit off is visible before it is flushed, and after a crash PostgreSQL issues the xids again that
were not. So between reading a batch and publishing it there is one flushed commit of our own. Recording an
earlier batch is such a commit; if there is nothing to record, an empty one is made.

Schedules. The process dies before the commit: nothing of this batch was published. It dies after it: the batch
is read again from the progress recorded last. It dies after publishing and before the batch is recorded: it is
published again, with the same message ids. PostgreSQL dies before the commit returns: the session ends, its
successor reads progress again. The commit returns an unknown result (connection lost): as if the session had
died; a publication that was written twice has its epoch and batch as primary key. Another session holds the row of
a lane that stops or goes on, or of which something is claimed or drained: the publications are recorded without it; see
lane_rows.py and withheld.py.

In steady state what is to be recorded travels with the next poll, behind it, in one round trip (`send_along`, `land`):
it commits after the poll has taken its snapshot, so it is the barrier of what that poll finds. Only one publication
does, without claims, drains and changes of lanes. Schedules, besides those above: the poll fails, and the record does
not (a partition was dropped): the record is kept, and does not count as the barrier of the poll that is made again. The
record fails, and the poll does not: nothing of the poll is published, and the session ends. The relay is paused or dies
between the record and publishing: as between any barrier and publishing. A check of ownership that is older than
`barriers.FRESH_S` is made again, by a barrier of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.batch import Batch, Stop, publications, runs
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.lane_rows import Change, LaneRows, Resumption
from outbox_relay.publisher.lease import ROW_WAIT_MS, Lease, LeaseLostError, Taken, columns
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.parked import Claim, KeyDrain
from outbox_relay.publisher.prepared import BOOL, INT8, TEXT, Call, Numbered, PreparedStatements, Rider
from outbox_relay.publisher.replication import Replication
from outbox_relay.publisher.snapshot import Progress
from outbox_relay.publisher.steps import Plan, Step
from outbox_relay.publisher.withheld import Kept, RowsHeldError, Withheld, claim_values

STATEMENTS = Statements("outbox_relay/publisher/publications.sql")

TOGETHER = 5_000
"""Messages of small batches that are recorded in one row, when several were acknowledged meanwhile."""

_NUMBERS = ("epoch", "batch", "lo", "hi", "after")
_TYPES = {**dict.fromkeys(_NUMBERS, INT8), "owner": TEXT, "is_partial": BOOL}
_PREPARED = {STATEMENTS[name]: Numbered.of(STATEMENTS[name], _TYPES) for name in ("record", "barrier")}
"""The statements of most turns."""


class Recorder:
    """Records acknowledged batches under a lease, in order."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease, replication: Replication) -> None:
        self._conn = conn
        self._lease = lease
        self._replication = replication
        self.statements = PreparedStatements(conn, self._has_session)
        """Prepared on the loop's connection; the finder's polls are, too, so that records can travel with them."""
        self._along: tuple[Rider | None, Plan] | None = None
        self.doubts = Doubts()
        self._rows = LaneRows(conn, lease, self.doubts)
        self.withheld = Withheld()
        self._number = 0
        self.resuming: set[int] = set()
        """Lanes that were stopped and go on, of which nothing was recorded since."""
        self.freed: Callable[[int], None] = lambda number: None
        """Called with the number of a parked key once its row is deleted, with the record of its drain."""
        self.recorded: dict[int, Progress] = {}
        """Per lane of ours, how far all is acknowledged and recorded. A successor starts here, or, after batches
        without a message, at an earlier progress with nothing to publish in between; of `unwritten` lanes, earlier."""

    def _has_session(self) -> bool:
        """Return whether the session is that in which the lease began, with its settings."""
        return self._conn.execute(LANE_STATEMENTS["session_mark"]).fetchone() == (str(self._lease.epoch),)

    @property
    def next_batch(self) -> int:
        """The number of the next publication."""
        return self._number + 1

    def barrier_counts(self) -> bool:
        """Ask whether the last barrier counts, so that what was read before it may be published."""
        return self._replication.has_reached_standby()

    def begin(self, taken: Taken) -> None:
        """Note lanes that were taken: what is recorded of them, and what is in doubt."""
        self.recorded |= taken.progress
        self.doubts.begin(taken.doubted, taken.refused)

    def end(self, lanes: Iterable[int]) -> None:
        """Forget lanes that were given back; nothing of them is on the wire or unwritten."""
        for lane in lanes:
            del self.recorded[lane]
            self.doubts.end(lane)
            self.withheld.end(lane)
            self.resuming.discard(lane)

    @property
    def unwritten(self) -> set[int]:
        """The lanes with rows that another session holds: their stops, claims or drains are not written."""
        return {*self._rows.unwritten, *self.withheld.lanes}

    def has(self, stop: Stop, unrecorded: Iterable[Batch]) -> bool:
        """Return whether a stop is written, and nothing of its lane is to be recorded."""
        pending = any(stop.lane in batch.speaks_for for batch in unrecorded) or stop.lane in self.unwritten
        return not pending and self.recorded[stop.lane] == stop.progress

    def resume(self, lane: int) -> None:
        """Let a stopped lane's progress be in publications again, from its next batch on."""
        self.resuming.add(lane)

    def resumed(self, lanes: Iterable[int]) -> None:
        """Write that lanes go on although nothing of them was published since they stopped."""
        going = [Resumption(lane, self._number + 1) for lane in lanes if lane in self.resuming]
        if going:
            self._run([self._barrier()], going)
            self.resuming.difference_update(lanes)

    def write_changes(self, *, now: bool = False) -> list[int]:
        """Write what is not written of lanes, once a second or `now`; return the lanes that still have some."""
        for lane in self.withheld.due(now=now):
            self._write_withheld(lane)
        changes = self._rows.due(now=now)
        if changes:
            self._run([self._barrier()], changes)
        return list(self.unwritten)

    def commit(
        self,
        acknowledged: Iterable[Batch],
        bounds: list[int],
        *,
        barrier: bool = False,
    ) -> int:
        """Write publications and lanes that stopped in one flushed commit; return the messages recorded.

        Args:
            acknowledged: batches whose every message is acknowledged, oldest first.
            bounds: upper bounds of the live partitions.
            barrier: make a commit even if there is nothing to write.

        Raises:
            LeaseLostError: another relay owns lanes of ours; nothing was written.
        """
        batches = list(acknowledged)
        return self._note(self._write(lambda: self._plan(batches, bounds, is_barrier=barrier), barrier))

    def _write(self, make: Callable[[], Plan], is_barrier: bool = False) -> Plan:
        """Make a plan and write it; without the claims and drains of lanes whose rows are held."""
        while True:
            plan = make()
            if (is_barrier and not plan.is_barrier) or (plan.changes and not plan.steps):
                plan.steps.append(self._barrier())
            try:
                self._run(plan.steps, plan.changes)
            except RowsHeldError as held:
                self._withhold(held.lanes)
            else:
                return plan

    def _withhold(self, lanes: Collection[int]) -> None:
        """Keep what lanes claim and drain until their rows are free.

        Raises:
            LeaseLostError: they are not ours any more.
        """
        self._execute(self._barrier())
        self.withheld.begin(lanes)
        self._rows.locked.report(lanes, "recording what fails, is held, or was drained")

    def _write_withheld(self, lane: int) -> None:
        steps = [self._step_of(kept) for kept in self.withheld.parts(lane, TOGETHER)]
        try:
            self._run([self._barrier(), *steps], is_bounded=True)
        except RowsHeldError:
            self._withhold([lane])
        else:
            self.withheld.end(lane)

    def _step_of(self, kept: list[Claim] | KeyDrain) -> Step:
        return self._drained(kept) if isinstance(kept, KeyDrain) else self._claims(kept)

    def _plan(self, acknowledged: Iterable[Batch], bounds: list[int], *, is_barrier: bool) -> Plan:
        """Return what there is to write; with `is_barrier` a record checks the ownership of all lanes."""
        plan = Plan()
        mine = self._lease.lanes
        for run in runs(acknowledged, TOGETHER):
            self._number += 1
            published, others, kept = self._steps(run, bounds, mine if is_barrier else frozenset())
            plan.kept += kept
            plan.steps += published + others
            # A drain, or claims, check the ownership of their own lanes only: they lock the rows.
            plan.is_barrier |= any(step.text == STATEMENTS["record"] for step in published) and is_barrier
            if published:
                going = (self.resuming - plan.resumed) & set(run[-1].lanes)
                plan.changes += [Resumption(lane, self._number) for lane in going]
                plan.resumed |= going
            plan.changes += run[-1].stops
            plan.messages += sum(batch.messages for batch in run)
            plan.done += run
        return plan

    def _note(self, plan: Plan) -> int:
        for batch in plan.done:
            self.recorded.update(dict.fromkeys(batch.lanes, batch.progress))
            self.recorded.update({stop.lane: stop.progress for stop in batch.stops})
        self.resuming -= plan.resumed
        self.withheld.add(plan.kept)
        return plan.messages

    @property
    def may_send_along(self) -> bool:
        """Whether a record that travels with a poll is the barrier of what the poll finds.

        Where messages wait for a standby each barrier is asked whether it counts, and is made by itself.
        """
        return not self._replication.is_wanted

    def send_along(self, acknowledged: Collection[Batch], bounds: list[int]) -> Rider | None:
        """Return the statement that records these batches, to travel with the next poll; `land` comes after it.

        Where it takes more than one statement, or there is nothing, they are written now, and None is returned.
        """
        plan = self._plan(acknowledged, bounds, is_barrier=True)
        if plan.is_only(STATEMENTS["record"]) and plan.is_barrier:
            text, values, _ = plan.steps[0]
            rider = Rider(Call(_PREPARED[text], _PREPARED[text].bind(values)))
        else:
            plans = iter([plan])
            plan = self._write(lambda: next(plans, None) or self._plan(acknowledged, bounds, is_barrier=True))
            rider = None
        self._along = rider, plan
        return rider

    def land(self) -> int:
        """Note what was sent along, and write it now if no poll took it with it; return the messages recorded.

        Raises:
            LeaseLostError: another relay owns lanes of ours; nothing was written.
        """
        if self._along is None:
            return 0
        (rider, plan), self._along = self._along, None
        if rider is not None:
            self._require_a_row(self.statements.finish(rider).command_tuples)
        return self._note(plan)

    def stop(self, stop: Stop) -> None:
        """Write that a lane stopped, outside a batch."""
        self._run([self._barrier()], [stop])
        self.recorded[stop.lane] = stop.progress

    def doubt_everything(self) -> None:
        """Note that everything which was read by now may be in Kafka."""
        row = self._conn.execute(LANE_STATEMENTS["newest"]).fetchone()
        assert row is not None  # noqa: S101  (a sequence has a value)
        self.doubts.add_everything(self.recorded, row[0])

    def _barrier(self) -> Step:
        return Step(STATEMENTS["barrier"], self._lease.ownership(self._lease.lanes))

    def claim(self, claim: Claim) -> None:
        """Write that a message fails, outside a batch; all in front of it must be recorded."""
        self._write_alone(claim, [claim])

    def drained(self, drain: KeyDrain) -> None:
        """Write what became of a drain of which nothing is to be recorded."""
        self._write_alone(drain, drain)

    def _write_alone(self, one: Kept, part: list[Claim] | KeyDrain) -> None:
        if one.lane not in self.withheld.lanes:
            try:
                self._run([self._step_of(part)], is_bounded=True)
            except RowsHeldError as held:
                self._withhold(held.lanes)
            else:
                return
        self.withheld.add([one])

    def _claims(self, claims: list[Claim]) -> Step:
        lanes = frozenset(claim.lane for claim in claims)
        return Step(STATEMENTS["claim"], {**self._lease.ownership(lanes), **self._claimed(claims)}, lanes)

    def _claimed(self, claims: list[Claim]) -> dict[str, Any]:
        covers = self.doubts.covers
        return claim_values(
            claims, {one.id: covers(one.lane, one.position, one.message_id) for one in claims}
        )

    def _drained(self, drain: KeyDrain) -> Step:
        failed = drain.failed
        values = {
            **self._lease.ownership([drain.lane]),
            "number": drain.number,
            "done": array_text(drain.done),
            "expired": array_text(drain.expired),
            "is_whole": drain.is_whole,
            "head": None if failed is None else failed.id,
            "error": None if failed is None or failed.head is None else failed.head.error,
            "in_doubt": failed is not None
            and self.doubts.covers(failed.lane, failed.position, failed.message_id),
        }
        return Step(STATEMENTS["drained"], values, frozenset([drain.lane]))

    def _steps(
        self, run: list[Batch], bounds: list[int], lanes: frozenset[int]
    ) -> tuple[list[Step], list[Step], list[Kept]]:
        """Return the steps that write publications, the first with claims, others, and what is not written now.

        Args:
            run: what is recorded together.
            bounds: upper bounds of the live partitions.
            lanes: those whose ownership a publication checks besides those of the run.
        """
        batch, held = run[-1], self.withheld.lanes
        speaks_for = frozenset[int]().union(*(each.speaks_for for each in run))
        ownership = self._lease.ownership(speaks_for | lanes)
        steps = [
            Step(
                STATEMENTS["record"],
                {
                    **ownership,
                    **columns(batch.progress),
                    "batch": self._number,
                    "lo": part.positions[0],
                    "hi": part.positions[-1],
                    "lanes": array_text(lane for lane in batch.lanes if lane not in held),
                    "positions": array_text(part.positions),
                    "partitions": array_text(part.partitions),
                    "offsets": array_text(part.offsets),
                },
            )
            for part in publications(run, bounds)
        ]
        drains = [] if batch.drain is None else [batch.drain]
        others = [self._drained(drain) for drain in drains if drain.lane not in held]
        kept: list[Kept] = [claim for each in run for claim in each.claims if claim.lane in held]
        kept += [drain for drain in drains if drain.lane in held]
        claims = [claim for each in run for claim in each.claims if claim.lane not in held]
        if claims and steps:
            values = {**steps[0].values, **self._lease.ownership(speaks_for), **self._claimed(claims)}
            steps[0] = Step(STATEMENTS["record_claims"], values, frozenset(claim.lane for claim in claims))
        elif claims:
            others.append(self._claims(claims))
        return steps, others, kept

    def _run(self, steps: list[Step], changes: Collection[Change] = (), *, is_bounded: bool = False) -> None:
        is_bounded |= any(step.text == STATEMENTS["drained"] for step in steps)
        if len(steps) == 1 and not changes and not is_bounded:
            freed = [self._execute(steps[0])]
        elif steps:
            freed, tried = self.statements.redo(lambda: self._in_one_commit(steps, changes, is_bounded))
            self._rows.settle(tried)
        else:
            return
        for number in freed:
            if number is not None:
                self.freed(number)

    def _in_one_commit(
        self, steps: list[Step], changes: Collection[Change], is_bounded: bool
    ) -> tuple[list[int | None], list[tuple[Change, bool]]]:
        held = self.withheld.lanes
        try:
            with self._conn.transaction():
                if is_bounded:
                    self._conn.execute(LANE_STATEMENTS["lock_timeout"], {"ms": str(ROW_WAIT_MS)})
                freed = [self._execute(step) for step in steps]
                return freed, [(one, one.lane not in held and self._rows.write(one)) for one in changes]
        except psycopg.errors.LockNotAvailable as error:
            locks = frozenset[int]().union(*(step.locks for step in steps))
            if not is_bounded or not locks:
                raise
            raise RowsHeldError(str(error), locks) from error

    def _execute(self, step: Step) -> int | None:
        """Run one step; return the number of the parked key whose row it deleted."""
        if (prepared := _PREPARED.get(step.text)) is not None:
            call = Call(prepared, prepared.bind(step.values))
            self._require_a_row(self.statements.run(call).command_tuples)
            return None
        done = self._conn.execute(step.text, step.values, prepare=True)
        if step.locks and not done.rowcount:
            raise RowsHeldError("a lane's row is held", step.locks)
        self._require_a_row(done.rowcount)
        if step.text == STATEMENTS["drained"] and done.fetchone() == (True,) and step.values["is_whole"]:
            return int(step.values["number"])
        return None

    def _require_a_row(self, rows: int | None) -> None:
        if not rows:
            raise LeaseLostError(
                f"another relay has taken lanes from {self._lease.owner} (epoch {self._lease.epoch})"
            )
