"""The checker: serves all groups, or some, until it is asked to stop.

Groups take turns on a few connections (see `schedule`); asking happens on each group's own threads and holds no
connection, so a group that hangs, fails or floods costs the others nothing but its share of turns. The service starts
before PostgreSQL does and outlives its restarts. Several may run side by side: what one has claimed the others leave
alone until its lease has passed, also when it was killed.

It also makes partitions ahead, as the relay does: business transactions then go on while the relay is away for days.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from outbox.backoff import Backoff
from outbox.checking.describing import error_text
from outbox.checking.finding import groups as groups_plan
from outbox.checking.rounds import ConnectionContext
from outbox.checking.transaction import transaction
from outbox.errors import error_name
from outbox.statements import Statements
from outbox_relay.checker.askers.registered import Askers, Registration
from outbox_relay.checker.connection import KeptConnection
from outbox_relay.checker.group import CheckedGroup
from outbox_relay.checker.schedule import Schedule
from outbox_relay.database import rights
from outbox_relay.database.connections import DatabaseUnreachableError, connect
from outbox_relay.database.partitions_ahead import keep_ahead
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.database.reasons import reason
from outbox_relay.database.schema import require_current
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log, inheriting

STATEMENTS = Statements("outbox_relay/checker/registered.sql")

FIND_GROUPS_EVERY_S = 1.0
"""Seconds between two reads of the groups; longer where a read takes long."""
LOOK_SHARE = 0.05
FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 5.0
RETIRE_AFTER_S = 60.0
REPORT_EVERY_S = 10.0
PARTITIONS_EVERY_S = 60.0

TOLD_FROM = 3
"""Failed turns of a group in a row from which on they are logged: a lock or a lost connection passes."""

AWAY = (DatabaseUnreachableError, psycopg.OperationalError, psycopg.InterfaceError)

log = Log("checker")


@dataclass(frozen=True, slots=True)
class CheckerOptions:
    """How a checker runs; times in seconds. `groups` empty: all."""

    dsn: str
    groups: Sequence[str] = ()
    connections: int = 4
    shutdown_timeout: float = 10.0
    partitions_every: float = PARTITIONS_EVERY_S


class Checker:
    """Serves groups until `stop()` is called.

    Raises from `run()`:
        SchemaError: the schema is missing or of another version.
    """

    def __init__(self, options: CheckerOptions, askers: Askers) -> None:
        self._options, self._askers = options, askers
        self._schedule = Schedule()
        self._groups: dict[str, CheckedGroup] = {}
        self._seen: dict[str, float] = {}
        self._stopping = threading.Event()
        self._connection = KeptConnection(options.dsn)
        self._periodic = Periodic(
            lambda: connect(options.dsn, application_name="outbox checker partitions"),
            [Task(keep_ahead, 5.0, options.partitions_every)],
        )
        self._away = False
        self._found = False
        self.found_at: float | None = None
        """When the groups were last read, as of `time.monotonic()`; None: not yet."""
        self.trouble: str | None = None
        """Why the last read of them failed; None: it did not."""
        self.tried_at = time.monotonic()
        """When it last tried to read them."""

    @property
    def groups(self) -> list[CheckedGroup]:
        """The groups that it serves now."""
        return list(self._groups.values())

    def stop(self) -> None:
        """Ask the checker to stop; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Run until stopped, then settle what was asked."""
        threads = [
            threading.Thread(target=inheriting(self._work), name=f"outbox-checker-{number}", daemon=True)
            for number in range(self._options.connections)
        ]
        for thread in threads:
            thread.start()
        try:
            self._look()
            self._drain()
        finally:
            self._schedule.close()
            for thread in threads:
                thread.join(2.0)
            for group in self._groups.values():
                group.stop()
            self._periodic.stop()
            self._connection.close()
        left = sum(group.in_flight for group in self._groups.values())
        log.info("stopped", left_to_their_lease=left)

    def _look(self) -> None:
        pause, report_at = FIRST_PAUSE_S, time.monotonic() + REPORT_EVERY_S
        away = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while not self._stopping.is_set():
            began = time.monotonic()
            self._periodic.check()
            self.tried_at = began
            try:
                self._find()
                self._away, self.found_at, self.trouble = False, time.monotonic(), None
                if not self._found:
                    self._found = True
                    self._periodic.start()
                pause = max(FIND_GROUPS_EVERY_S, (time.monotonic() - began) / LOOK_SHARE)
                away = Backoff(pause, LAST_PAUSE_S)
            except AWAY as error:
                self._away, self.trouble = True, "PostgreSQL is away"
                pause = away.next()
                log.warning("PostgreSQL is away", **reason(error), next_try_in_s=pause)
                self._stopping.wait(pause)
                continue
            except psycopg.Error as error:
                self.trouble = f"the groups were not read: {error_name(error)}"
                pause = away.next()
                log.error("groups were not read", **reason(error), next_try_in_s=pause)
            if time.monotonic() >= report_at:
                self._report()
                report_at = time.monotonic() + REPORT_EVERY_S
            self._stopping.wait(pause)

    def _find(self) -> None:
        """Look which groups there is something to do for, and how they are registered."""
        known = self._connection.is_open
        with self._connection.use() as conn:
            if not known:
                require_current(conn)
                log.info("connected", groups=list(self._options.groups) or "all")
            names = transaction(conn, "checker", groups_plan())
            if self._options.groups:
                names = [name for name in names if name in self._options.groups]
            rows = conn.execute(STATEMENTS["registered"], {"names": names}).fetchall()
        found = {name: Registration.read(callback, workers) for name, callback, workers in rows}
        now = time.monotonic()
        for name in names:
            self._seen[name] = now
            self._look_after(name, found.get(name, Registration()))
        for name, group in list(self._groups.items()):
            if group.ended:
                del self._groups[name], self._seen[name]
                log.info("group left", group=name)
            elif now - self._seen[name] > RETIRE_AFTER_S:
                group.retired = True
                self._schedule.wake(name)

    def _look_after(self, name: str, registration: Registration) -> None:
        group = self._groups.get(name)
        if group is None:
            log.info("group found", group=name, callback=registration.kind)
            self._groups[name] = CheckedGroup(
                name, registration, self._askers, lambda: self._schedule.wake(name)
            )
            self._schedule.add(name)
        elif group.wanted != registration:
            log.info("callback changed", group=name, callback=registration.kind)
            group.wanted = registration
            self._schedule.wake(name)

    def _work(self) -> None:
        """Give groups their turns, on one connection that is opened again when it is lost."""
        connection = KeptConnection(self._options.dsn)
        try:
            while (name := self._schedule.take()) is not None:
                self._schedule.give_back(name, self._turn(self._groups[name], connection.use))
        finally:
            connection.close()

    def _turn(self, group: CheckedGroup, connection: ConnectionContext) -> float | None:
        try:
            pause = group.turn(connection)
        except AWAY as error:
            group.trouble = error_name(error)
            # While PostgreSQL is away, the look for groups tells it once for all of them.
            if not self._away and group.failures >= TOLD_FROM:
                log.warning("turn failed, trying again", group=group.name, **reason(error))
        except Exception as error:  # noqa: BLE001  (one group's trouble must not end the others')
            group.trouble = error_name(error)
            log.error(
                "turn failed",
                group=group.name,
                exception=None if isinstance(error, (psycopg.Error, OperatorError)) else error,
                reason=error_text(error),
                **({"hint": repair} if (repair := rights.repair(error)) else {}),
            )
        else:
            group.failures, group.trouble = 0, None
            group.backoff.reset()
            return pause
        group.failures += 1
        return group.backoff.next()

    def _report(self) -> None:
        for group in self._groups.values():
            group.report()

    def _drain(self) -> None:
        """Claim nothing more, wait for the answers that are out and settle them."""
        for group in self._groups.values():
            group.draining = True
            self._schedule.wake(group.name)
        until = time.monotonic() + self._options.shutdown_timeout
        # A turn that began before the signal may still claim, so only a later turn shows that no claim follows.
        while time.monotonic() < until and not all(
            group.claims_no_more or group.failures for group in self._groups.values()
        ):
            time.sleep(0.02)
        log.info("stopping", asked=sum(group.in_flight for group in self._groups.values()))
        # Without the database nothing can be settled: what has nothing out is not waited for.
        while time.monotonic() < until and not all(
            group.drained or (group.failures and not group.in_flight) for group in self._groups.values()
        ):
            time.sleep(0.02)
        self._report()
