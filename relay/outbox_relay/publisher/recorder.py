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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.batch import Batch, Stop, publications, runs
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.lane_rows import Change, LaneRows, Resumption
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.lease import Lease, LeaseLostError, Taken, columns
from outbox_relay.publisher.parked import Claim, KeyDrain
from outbox_relay.publisher.replication import Replication
from outbox_relay.publisher.snapshot import Progress

STATEMENTS = Statements("outbox_relay/publisher/publications.sql")

TOGETHER = 5_000
"""Messages of small batches that are recorded in one row, when several were acknowledged meanwhile."""

Step = tuple[str, dict[str, Any]]
"""A statement and its values. Each carries the lease check: it touches no row if the lanes are not ours any more."""


class Recorder:
    """Records acknowledged batches under a lease, in order."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease, replication: Replication) -> None:
        self._conn = conn
        self._lease = lease
        self._replication = replication
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
        steps: list[Step] = []
        changes: list[Change] = []
        messages = 0
        done: list[Batch] = []
        resumed: set[int] = set()
        is_barrier = False
        for run in runs(acknowledged, TOGETHER):
            self._number += 1
            published, others = self._steps(run, bounds)
            steps += published + others
            # A drain, or claims alone, check the ownership of one lane only.
            is_barrier |= bool(published) and run[-1].drain is None
            if published:
                going = (self.resuming - resumed) & set(run[-1].lanes)
                changes += [Resumption(lane, self._number) for lane in going]
                resumed |= going
            changes += run[-1].stops
            messages += sum(batch.messages for batch in run)
            done += run
        if (barrier and not is_barrier) or (changes and not steps):
            steps.append(self._barrier())
        self._run(steps, changes)
        for batch in done:
            self.recorded.update(dict.fromkeys(batch.lanes, batch.progress))
            self.recorded.update({stop.lane: stop.progress for stop in batch.stops})
        self.resuming -= resumed
        return messages

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
        return STATEMENTS["barrier"], self._ownership(self._lease.lanes)

    def _ownership(self, lanes: Iterable[int]) -> dict[str, Any]:
        return {"epoch": self._lease.epoch, "owner": self._lease.owner, "mine": array_text(lanes)}

    def claim(self, claim: Claim) -> None:
        """Write that a message fails, outside a batch; all in front of it must be recorded."""
        self._run([self._claims([claim])])

    def drained(self, drain: KeyDrain) -> None:
        """Write what became of a drain of which nothing is to be recorded."""
        self._run([self._drained(drain)])

    def _claims(self, claims: list[Claim]) -> Step:
        return STATEMENTS["claim"], {
            **self._ownership(frozenset(claim.lane for claim in claims)),
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
            **self._ownership([drain.lane]),
            "number": drain.number,
            "done": array_text(drain.done),
            "expired": array_text(drain.expired),
            "is_whole": drain.is_whole,
            "head": None if failed is None else failed.id,
            "error": None if failed is None or failed.head is None else failed.head.error,
            "in_doubt": failed is not None
            and self.doubts.covers(failed.lane, failed.position, failed.message_id),
        }

    def _steps(self, run: list[Batch], bounds: list[int]) -> tuple[list[Step], list[Step]]:
        """Return the steps that write publications, the first with claims, and others."""
        batch = run[-1]
        ownership = self._ownership(frozenset().union(*(each.speaks_for for each in run)))
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
            steps[0] = STATEMENTS["record_claims"], {**steps[0][1], **self._claimed(claims)}
        elif claims:
            others.append(self._claims(claims))
        return steps, others

    def _run(self, steps: list[Step], changes: Collection[Change] = ()) -> None:
        if len(steps) == 1 and not changes:
            freed = [self._execute(*steps[0])]
        elif steps:
            with self._conn.transaction():
                freed = [self._execute(*step) for step in steps]
                tried = [(change, self._rows.write(change)) for change in changes]
            self._rows.settle(tried)
        else:
            return
        for number in freed:
            if number is not None:
                self.freed(number)

    def _execute(self, statement: str, values: dict[str, Any]) -> int | None:
        """Run one step; return the number of the parked key whose row it deleted, if it did."""
        done = self._conn.execute(statement, values, prepare=True)
        if done.rowcount == 0:
            raise LeaseLostError(
                f"another relay has taken lanes from {self._lease.owner} (epoch {self._lease.epoch})"
            )
        if statement == STATEMENTS["drained"] and done.fetchone() == (True,) and values["is_whole"]:
            return int(values["number"])
        return None


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
        "order_keys": [head.key[3] for _, head in heads],
        "errors": [head.error for _, head in heads],
    }
