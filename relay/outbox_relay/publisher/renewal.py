"""Renewing the lease outside of the publishing loop, on a thread and connection of its own.

The loop may be in one statement, or waiting for Kafka, for longer than a lease: listing a backlog, reading topics,
settling. The lanes stay its own meanwhile. The barrier still decides, or the poll: each asks the database in the same
commit whether the lanes are ours: this thread only keeps other relays from taking them, and never permits anything.

What it must not do, and what happens between any two lines:

- **Keep the lanes of a loop that hangs.** The loop calls `beat()` at every turn. Without a beat for `stalled_after`
  seconds the lease is renewed only while the loop's database session is seen to work on a statement (`active`, and
  not waiting for its client: that would be the hanging loop itself). Otherwise the thread logs that it stops
  renewing, the lease runs out, and another relay takes over. If the loop goes on before that, so does renewing.
- **Outlive the process or its pause.** SIGKILL and SIGSTOP end or stop both threads alike. After a pause the renewal
  may come first: it finds the lease renewable (the lanes were not taken: nothing is lost) or its row gone, notes
  that, and the next `beat()` raises LeaseLostError. If the loop comes first, its poll or barrier finds the other epoch.
- **Bring back lanes that were taken or given back.** The statement changes one existing row, and no lane. The lock of
  the table lets a taker wait for a renewal, or a renewal for a taker: one that was faster keeps the lanes, one that is
  later extends a lease without the lanes that were taken, or finds no row where all were. Poll and barrier know. At the
  end `stop()` comes before the lease is given up, and a renewal that is under way then finds no row.
- **Wait for long.** A lock and the statement itself are given up after a lease. An error is logged and tried again on a
  new connection; when that lasts longer than the lease, others may take the lanes, and poll or barrier notices.

`outbox.lease.backend_pid` names the *loop's* session, the only one that polls and makes barriers. If that session dies,
the lanes may be taken at once, whatever this thread renews; the loop gets the error at its next statement, and then
this thread is stopped. If only this thread's session dies, the loop goes on and the thread connects again. Behind a
pooler in session mode the server's session outlives its client, so that only the end of the lease shows a death.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.database.reasons import may_heal, reason
from outbox_relay.publisher.lease import STATEMENTS, Lease
from outbox_relay.text.logs import Log, inheriting

RENEWALS_PER_LEASE = 3
RETRIES_PER_LEASE = 10
TOLD_EVERY_S = 10.0
STOP_S = 2.0

log = Log("lanes")


class Renewal:
    """Renews a lease while its loop beats, or works in the database.

    Args:
        lease: what was taken.
        connect: opens the thread's connection.
        loop_pid: the server process of the loop's connection.
        stalled_after: seconds without a beat after which the loop is taken to hang.
    """

    def __init__(
        self,
        lease: Lease,
        connect: Callable[[], psycopg.Connection[Any]],
        loop_pid: int,
        *,
        stalled_after: float,
    ) -> None:
        self.lease = lease
        self._connect = connect
        self._loop_pid = loop_pid
        self._stalled_after = stalled_after
        self._conn: psycopg.Connection[Any] | None = None
        self.beaten = self._seen_working = time.monotonic()
        """When the loop made progress."""
        self._told_at = 0.0
        self.is_stalled = False
        """Whether the loop hangs, so that its lease is not renewed."""
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=inheriting(self._run), name="lease", daemon=True)

    def start(self) -> None:
        """Start renewing."""
        self._thread.start()

    def stop(self) -> None:
        """End renewing, before the lanes are given back or left to others; may be called again."""
        self._ending.set()
        conn = self._conn
        if conn is not None and self._thread.is_alive():
            with contextlib.suppress(psycopg.Error):
                conn.cancel_safe(timeout=1.0)
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def beat(self) -> None:
        """Note that the loop makes progress; call it at every turn and while waiting for Kafka.

        Raises:
            LeaseLostError: a renewal found that the lanes are not ours any more.
            Exception: a defect that ended the thread.
        """
        self.beaten = time.monotonic()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._ending.wait(pause):
                try:
                    self._renew()
                    # All relays of a host at the same moments: each renewal lets idle relays of the server look.
                    period = self.lease.seconds / RENEWALS_PER_LEASE
                    pause = period - time.monotonic() % period
                except (psycopg.Error, DatabaseUnreachableError) as error:
                    if not may_heal(error):
                        raise
                    self._close()
                    pause = self.lease.seconds / RETRIES_PER_LEASE
                    if not self._ending.is_set():
                        log.warning("lease not renewed, trying again", next_try_in_s=pause, **reason(error))
        except Exception as error:  # noqa: BLE001  (raised by the next beat)
            self._failure = error
        finally:
            self._close()

    def _renew(self) -> None:
        if self._conn is None:
            self._conn = self._connect()
            self._conn.execute(STATEMENTS["renewal_settings"], {"ms": str(round(self.lease.seconds * 1000))})
        if self._shows_progress(self._conn):
            self.lease.renew(self._conn)

    def _shows_progress(self, conn: psycopg.Connection[Any]) -> bool:
        """Return whether the loop may keep its lanes; log what it waits for when it has been silent for a lease."""
        now = time.monotonic()
        silent = now - self.beaten
        if silent <= min(self.lease.seconds, self._stalled_after):
            if self.is_stalled:
                log.info("the publishing loop goes on; its lease is renewed again")
            self.is_stalled = False
            return True
        row = conn.execute(STATEMENTS["loop"], {"pid": self._loop_pid}).fetchone()
        state, wait, waits_for, is_working = row or (None, None, None, False)
        if is_working:
            self._seen_working = now
        stalled = now - max(self.beaten, self._seen_working) > self._stalled_after
        if stalled and not self.is_stalled:
            log.error(
                "the publishing loop hangs: its lease is not renewed any more, so that another relay may take over",
                silent_for_s=round(silent, 1),
                session=state or "gone",
            )
        elif not stalled and now >= self._told_at:
            self._told_at = now + TOLD_EVERY_S
            log.warning(
                "the publishing loop is busy for longer than a lease",
                silent_for_s=round(silent, 1),
                session=state or "gone",
                waits_on=wait or "nothing",
                held_by=waits_for or "nobody",
            )
        self.is_stalled = stalled
        return not stalled

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.close()
