"""Retention that a relay carries out by itself, once an hour, on a thread and connection of its own.

It is `outbox history drop` with the same locks, so it may die at any step: between two steps the partition's mark and
the states of its three tables are in the catalogue, and the next run, of any relay or of the command, finishes the
removal or takes it back. One session drops at a time; the others find the advisory lock taken and try an hour later.
PostgreSQL frees the lock with the session, so a relay that is killed or paused keeps it as long as its session lives,
and nothing else: the locks on tables are given up after 2 s at most.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox_relay.database.connections import connect
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.database.schema import require_current
from outbox_relay.retention.removal import AlreadyRunningError, only_removal
from outbox_relay.retention.run import RangeResult, Retention, RetentionOptions
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("retention")

FIRST_S = 10.0
"""Seconds from the start of the relay to the first run."""
EVERY_S = 3_600.0


class RetentionService(Periodic):
    """Drops history in the background, between `with` and the end of its block.

    Args:
        dsn: of a user who may drop the partitions: their owner, or a member of that role.
        options: as of `outbox history drop`.
        every: seconds between two runs.
    """

    def __init__(self, dsn: str, options: RetentionOptions, *, every: float = EVERY_S) -> None:
        self._options = options
        self._refused: dict[str, str] = {}
        super().__init__(
            lambda: connect(dsn, application_name="outbox relay retention"),
            [Task(self.retain, FIRST_S, every)],
            on_defect=_report,
        )

    def retain(self, conn: psycopg.Connection[Any]) -> bool:
        """Drop what may go, once; what is in the way is logged, because it must not end a relay.

        Raises:
            psycopg.Error: PostgreSQL went away or refused a statement; it is tried again soon.
        """
        try:
            require_current(conn)
            with only_removal(conn):
                self._drop(Retention(conn, self._options))
        except AlreadyRunningError:
            log.debug("another session drops history")
        except OperatorError as error:
            log.warning("history is not dropped", error=" ".join(str(error).split()))
        return True

    def _drop(self, run: Retention) -> None:
        for result in run.drop():
            self._report(result)
        keys, checks = run.tidy()
        if keys or checks:
            log.info("left-over rows deleted", idempotency_keys=keys, pending_checks=checks)

    def _report(self, result: RangeResult) -> None:
        """Log what was dropped, and each refusal when it is new or has changed."""
        range_, name = result.decision.range, result.decision.range.name
        if result.outcome == "refused":
            names = ", ".join(reason.name for reason in result.decision.reasons)
            if self._refused.get(name) != names:
                details = "; ".join(reason.detail for reason in result.decision.reasons)
                log.warning("history refused", partition=name, reasons=names, details=details)
            self._refused[name] = names
            return
        self._refused.pop(name, None)
        if result.outcome == "dropped":
            log.info(
                "history dropped",
                partition=name,
                from_id=range_.lower,
                to_id=range_.upper - 1,
                messages=result.decision.messages or 0,
            )


def _report(defect: Exception) -> None:
    """Log a defect, which must neither end the relay nor end retention unseen."""
    log.error("retention failed", kind=type(defect).__name__, error=str(defect))
