"""The recorder: writes publications, and so gives the barrier that the next batch needs.

Nothing may be published that the database could still forget: a transaction that committed with
synchronous_commit off is visible before it is flushed, and after a crash PostgreSQL issues the xids again that
were not. So between reading a batch and publishing it there is one flushed commit of our own. Recording an
earlier batch is such a commit; if there is nothing to record, an empty one is made.

Schedules. The process dies before the commit: nothing of this batch was published. It dies after it: the batch
is read again from the progress recorded last. It dies after publishing and before the batch is recorded: it is
published again, with the same message ids. PostgreSQL dies before the commit returns: the session ends, its
successor reads progress again. The commit returns an unknown result (connection lost): as if the session had
died; a publication that was written twice has its epoch and batch as primary key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from outbox_relay.finder.finder import array_text
from outbox_relay.finder.snapshot import Progress
from outbox_relay.lanes.lease import LANES, Lease, LeaseLostError, columns
from outbox_relay.lanes.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publishing.batch import Batch, Stop, publications, runs
from outbox_relay.statements import Statements

STATEMENTS = Statements("publishing/publications.sql")

TOGETHER = 5_000
"""Messages of small batches that are recorded in one row, when several were acknowledged meanwhile."""

Step = tuple[str, dict[str, Any], bool]
"""A statement, its values, and whether it must touch a row because it carries the lease check."""


class Recorder:
    """Records acknowledged batches under a lease, in order."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease) -> None:
        self._conn = conn
        self._lease = lease
        self._number = 0
        self.resuming: set[int] = set()
        """Lanes that were stopped and go on, of which nothing was recorded since."""
        self.recorded: dict[int, Progress] = dict(lease.progress)
        """Per lane, how far all is acknowledged and recorded. A successor starts here, or, after batches without
        a message, at an earlier progress with nothing to publish in between."""

    def resume(self, lane: int) -> None:
        """Let a stopped lane's progress be in publications again, from its next batch on."""
        self.resuming.add(lane)

    def resumed(self, lanes: Iterable[int]) -> None:
        """Write that lanes go on although nothing of them was published since they stopped."""
        steps: list[Step] = [
            self._resume_step(lane, self._number + 1) for lane in lanes if lane in self.resuming
        ]
        if steps:
            self._run([*steps, (STATEMENTS["barrier"], self._ownership(), True)])
            self.resuming.difference_update(lanes)

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
        messages = 0
        done: list[Batch] = []
        resumed: set[int] = set()
        for run in runs(acknowledged, TOGETHER):
            self._number += 1
            steps += self._steps(run, bounds)
            if any(batch.messages for batch in run):
                resumed |= self.resuming & set(run[-1].lanes)
            messages += sum(batch.messages for batch in run)
            done += run
        if not any(checks for _, _, checks in steps) and (barrier or steps):
            steps.append((STATEMENTS["barrier"], self._ownership(), True))
        self._run(steps)
        for batch in done:
            self.recorded.update(dict.fromkeys(batch.lanes, batch.progress))
            self.recorded.update({stop.lane: stop.progress for stop in batch.stops})
        self.resuming -= resumed
        return messages

    def stop(self, stop: Stop) -> None:
        """Write that a lane stopped, outside a batch."""
        self._run([self._stop_step(stop), (STATEMENTS["barrier"], self._ownership(), True)])
        self.recorded[stop.lane] = stop.progress

    def _ownership(self) -> dict[str, Any]:
        return {"epoch": self._lease.epoch, "owner": self._lease.owner, "owned": LANES}

    def _steps(self, run: list[Batch], bounds: list[int]) -> Iterable[Step]:
        batch = run[-1]
        published = False
        for part in publications(run, bounds):
            published = True
            values = {
                **self._ownership(),
                **columns(batch.progress),
                "batch": self._number,
                "lo": part.positions[0],
                "hi": part.positions[-1],
                "lanes": array_text(batch.lanes),
                "positions": array_text(part.positions),
                "partitions": array_text(part.partitions),
                "offsets": array_text(part.offsets),
            }
            yield STATEMENTS["record"], values, True
        if published:
            for lane in self.resuming & set(batch.lanes):
                yield self._resume_step(lane, self._number)
        for stop in batch.stops:
            yield self._stop_step(stop)

    def _resume_step(self, lane: int, batch: int) -> Step:
        values = {"lane": lane, "epoch": self._lease.epoch, "batch": batch}
        return LANE_STATEMENTS["resume"], values, False

    def _stop_step(self, stop: Stop) -> Step:
        values = {
            "lane": stop.lane,
            "epoch": self._lease.epoch,
            "error": str(stop.reason),
            "message_id": None if stop.in_flight else stop.message_id,
            **columns(stop.progress),
        }
        return LANE_STATEMENTS["stop"], values, False

    def _run(self, steps: list[Step]) -> None:
        if not steps:
            return
        if len(steps) == 1:
            self._execute(*steps[0])
            return
        with self._conn.transaction():
            for step in steps:
                self._execute(*step)

    def _execute(self, statement: str, values: dict[str, Any], checks: bool) -> None:
        if self._conn.execute(statement, values, prepare=True).rowcount == 0 and checks:
            raise LeaseLostError(
                f"another relay has taken lanes from {self._lease.owner} (epoch {self._lease.epoch})"
            )
