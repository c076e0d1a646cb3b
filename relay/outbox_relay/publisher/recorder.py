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
a lane that stops or goes on: the publications are recorded without it; see lane_rows.py.

In steady state what is to be recorded travels with the next poll, behind it, in one round trip (`send_along`, `land`):
it commits after the poll has taken its snapshot, so it is the barrier of what that poll finds. Only one publication
does, without claims, drains and changes of lanes. Schedules, besides those above: the poll fails, and the record does
not (a partition was dropped): the record is kept, and does not count as the barrier of the poll that is made again. The
record fails, and the poll does not: nothing of the poll is published, and the session ends. The relay is paused or dies
between the record and publishing: as between any barrier and publishing. A check of ownership that is older than
`barriers.FRESH_S` is made again, by a barrier of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.batch import Batch, Stop, publications, runs
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.lane_rows import Change, LaneRows, Resumption
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.lease import Lease, LeaseLostError, Taken, columns
from outbox_relay.publisher.parked import Claim, KeyDrain
from outbox_relay.publisher.prepared import BOOL, INT8, TEXT, Call, Numbered, PreparedStatements, Rider
from outbox_relay.publisher.replication import Replication
from outbox_relay.publisher.snapshot import Progress

STATEMENTS = Statements("outbox_relay/publisher/publications.sql")

TOGETHER = 5_000
"""Messages of small batches that are recorded in one row, when several were acknowledged meanwhile."""

Step = tuple[str, dict[str, Any]]
"""A statement and its values. Each carries the lease check: it touches no row if the lanes are not ours any more."""

_NUMBERS = ("epoch", "batch", "lo", "hi", "after")
_TYPES = {**dict.fromkeys(_NUMBERS, INT8), "owner": TEXT, "is_partial": BOOL}
_PREPARED = {STATEMENTS[name]: Numbered.of(STATEMENTS[name], _TYPES) for name in ("record", "barrier")}
"""The statements of most turns."""


@dataclass(slots=True)
class _Plan:
    """What there is to write."""

    steps: list[Step] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    messages: int = 0
    done: list[Batch] = field(default_factory=list)
    resumed: set[int] = field(default_factory=set)
    is_barrier: bool = False
    """Whether a step checks the ownership of all lanes."""

    @property
    def is_one_record(self) -> bool:
        """Whether it is one publication and nothing else."""
        return len(self.steps) == 1 and self.steps[0][0] == STATEMENTS["record"] and not self.changes


class Recorder:
    """Records acknowledged batches under a lease, in order."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease, replication: Replication) -> None:
        self._conn = conn
        self._lease = lease
        self._replication = replication
        self.statements = PreparedStatements(conn, self._has_session)
        """Prepared on the loop's connection; the finder's polls are, too, so that records can travel with them."""
        self._along: tuple[Rider | None, _Plan] | None = None
        self.doubts = Doubts()
        self._rows = LaneRows(conn, lease, self.doubts)
        self._number = 0
        self.resuming: set[int] = set()
        """Lanes that were stopped and go on, of which nothing was recorded since."""
        self.freed: Callable[[int], None] = lambda number: None
        """Called with the number of a parked key once its row is deleted, with the record of its drain."""
        self.recorded: dict[int, Progress] = {}
        """Per lane of ours, how far all is acknowledged and recorded. A successor starts here, or, after batches
        without a message, at an earlier progress with nothing to publish in between; of `unwritten` lanes, earlier."""

    def _has_session(self) -> bool:
        """Return whether the session is the one in which the lease began, with the settings that were made there."""
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
            self.resuming.discard(lane)

    @property
    def unwritten(self) -> Collection[int]:
        """The lanes whose rows are held by another session, and do not record yet that they stopped or go on."""
        return self._rows.unwritten.keys()

    def has(self, stop: Stop, unrecorded: Iterable[Batch]) -> bool:
        """Return whether a stop is written, and nothing of its lane is to be recorded."""
        pending = any(stop.lane in batch.speaks_for for batch in unrecorded)
        known = stop.lane not in self.unwritten
        return not pending and known and self.recorded[stop.lane] == stop.progress

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
        """Write what rows of lanes do not hold yet, once a second or `now`; return the lanes that still do not."""
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
        plan = self._plan(acknowledged, bounds, is_barrier=barrier)
        if (barrier and not plan.is_barrier) or (plan.changes and not plan.steps):
            plan.steps.append(self._barrier())
        self._run(plan.steps, plan.changes)
        return self._note(plan)

    def _plan(self, acknowledged: Iterable[Batch], bounds: list[int], *, is_barrier: bool) -> _Plan:
        """Return what there is to write; with `is_barrier` a record checks the ownership of all lanes."""
        plan = _Plan()
        mine = self._lease.lanes
        for run in runs(acknowledged, TOGETHER):
            self._number += 1
            published, others = self._steps(run, bounds, mine if is_barrier else frozenset())
            plan.steps += published + others
            # A drain, or claims, check the ownership of their own lanes only: they lock the rows.
            plan.is_barrier |= any(text == STATEMENTS["record"] for text, _ in published) and is_barrier
            if published:
                going = (self.resuming - plan.resumed) & set(run[-1].lanes)
                plan.changes += [Resumption(lane, self._number) for lane in going]
                plan.resumed |= going
            plan.changes += run[-1].stops
            plan.messages += sum(batch.messages for batch in run)
            plan.done += run
        return plan

    def _note(self, plan: _Plan) -> int:
        for batch in plan.done:
            self.recorded.update(dict.fromkeys(batch.lanes, batch.progress))
            self.recorded.update({stop.lane: stop.progress for stop in batch.stops})
        self.resuming -= plan.resumed
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
        if plan.is_one_record and plan.is_barrier:
            text, values = plan.steps[0]
            rider = Rider(Call(_PREPARED[text], _PREPARED[text].bind(values)))
        else:
            if plan.changes and not plan.steps:
                plan.steps.append(self._barrier())
            self._run(plan.steps, plan.changes)
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
        return STATEMENTS["barrier"], self._lease.ownership(self._lease.lanes)

    def claim(self, claim: Claim) -> None:
        """Write that a message fails, outside a batch; all in front of it must be recorded."""
        self._run([self._claims([claim])])

    def drained(self, drain: KeyDrain) -> None:
        """Write what became of a drain of which nothing is to be recorded."""
        self._run([self._drained(drain)])

    def _claims(self, claims: list[Claim]) -> Step:
        return STATEMENTS["claim"], {
            **self._lease.ownership(frozenset(claim.lane for claim in claims)),
            **self._claimed(claims),
        }

    def _claimed(self, claims: list[Claim]) -> dict[str, Any]:
        covers = self.doubts.covers
        return claim_values(
            claims, {one.id: covers(one.lane, one.position, one.message_id) for one in claims}
        )

    def _drained(self, drain: KeyDrain) -> Step:
        failed = drain.failed
        return STATEMENTS["drained"], {
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

    def _steps(
        self, run: list[Batch], bounds: list[int], lanes: frozenset[int]
    ) -> tuple[list[Step], list[Step]]:
        """Return the steps that write publications, the first with claims, and others.

        Args:
            run: what is recorded together.
            bounds: upper bounds of the live partitions.
            lanes: those whose ownership a publication checks besides those of the run.
        """
        batch = run[-1]
        speaks_for = frozenset[int]().union(*(each.speaks_for for each in run))
        ownership = self._lease.ownership(speaks_for | lanes)
        steps = [
            (
                STATEMENTS["record"],
                {
                    **ownership,
                    **columns(batch.progress),
                    "batch": self._number,
                    "lo": part.positions[0],
                    "hi": part.positions[-1],
                    "lanes": array_text(batch.lanes),
                    "positions": array_text(part.positions),
                    "partitions": array_text(part.partitions),
                    "offsets": array_text(part.offsets),
                },
            )
            for part in publications(run, bounds)
        ]
        others = [] if batch.drain is None else [self._drained(batch.drain)]
        claims = [claim for each in run for claim in each.claims]
        if claims and steps:
            own = self._lease.ownership(speaks_for)
            steps[0] = STATEMENTS["record_claims"], {**steps[0][1], **own, **self._claimed(claims)}
        elif claims:
            others.append(self._claims(claims))
        return steps, others

    def _run(self, steps: list[Step], changes: Collection[Change] = ()) -> None:
        if len(steps) == 1 and not changes:
            freed = [self._execute(*steps[0])]
        elif steps:
            freed, tried = self.statements.redo(lambda: self._in_one_commit(steps, changes))
            self._rows.settle(tried)
        else:
            return
        for number in freed:
            if number is not None:
                self.freed(number)

    def _in_one_commit(
        self, steps: list[Step], changes: Collection[Change]
    ) -> tuple[list[int | None], list[tuple[Change, bool]]]:
        with self._conn.transaction():
            freed = [self._execute(*step) for step in steps]
            return freed, [(change, self._rows.write(change)) for change in changes]

    def _execute(self, statement: str, values: dict[str, Any]) -> int | None:
        """Run one step; return the number of the parked key whose row it deleted, if it did."""
        if (prepared := _PREPARED.get(statement)) is not None:
            call = Call(prepared, prepared.bind(values))
            self._require_a_row(self.statements.run(call).command_tuples)
            return None
        done = self._conn.execute(statement, values, prepare=True)
        self._require_a_row(done.rowcount)
        if statement == STATEMENTS["drained"] and done.fetchone() == (True,) and values["is_whole"]:
            return int(values["number"])
        return None

    def _require_a_row(self, rows: int | None) -> None:
        if not rows:
            raise LeaseLostError(
                f"another relay has taken lanes from {self._lease.owner} (epoch {self._lease.epoch})"
            )


def claim_values(claims: Collection[Claim], doubtful: Mapping[int, bool]) -> dict[str, Any]:
    """Return claims as the arrays that `claim` and `record_claims` take.

    Args:
        claims: those of a batch, or of several.
        doubtful: by id, whether Kafka may have the message.
    """
    heads = [(claim, claim.head) for claim in claims if claim.head is not None]
    return {
        "ids": array_text(claim.id for claim in claims),
        "message_ids": [claim.message_id for claim in claims],
        "reasons": [claim.reason for claim in claims],
        "numbers": [claim.number for claim in claims],
        "places": array_text(claim.position for claim in claims),
        "doubtful": [doubtful[claim.id] for claim in claims],
        "head_numbers": array_text(claim.number or 0 for claim, _ in heads),
        "heads": array_text(claim.id for claim, _ in heads),
        "head_lanes": array_text(claim.lane for claim, _ in heads),
        "topics": [head.key[1] for _, head in heads],
        "queues": [head.key[2] for _, head in heads],
        "order_keys": [head.order_key for _, head in heads],
        "errors": [head.error for _, head in heads],
    }
