"""A whole run: place, processes, faults, settling, check; and what is left behind."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outbox_relay.database.connections import Connection
from outbox_relay.proving import place
from outbox_relay.proving.children import ChildError, Children
from outbox_relay.proving.course import course_of
from outbox_relay.proving.crew import Crew, CrewWork, Role, crew_environment
from outbox_relay.proving.faults import FaultKind, Faults
from outbox_relay.proving.history import RecordedPlace, RunHistory, check_history
from outbox_relay.proving.outcome import ProofOutcome
from outbox_relay.proving.place import Belongings, PlaceError, Report, Servers
from outbox_relay.proving.reader import read_records
from outbox_relay.proving.tails import JournalTail
from outbox_relay.proving.workload import SQL, sent_messages

AT_LEAST_ONCE = "at-least-once"
FIRST_S = 60.0
"""How long the first message may take."""
SETTLE_S = 45.0
"""How long nothing may arrive before the run stops waiting; the check then lists what is missing."""
PEACE_S = (0.5, 2.5)
"""The shortest and the longest time between two faults."""
TELL_S = 10.0


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """What is asked of a run."""

    seconds: float
    rate: float
    faults: Sequence[FaultKind]
    delivery: str
    seed: int


class RunProgress:
    """Counts what the journals hold so far."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._reader = JournalTail(crew.reader_journal)
        self._producers: dict[Path, JournalTail] = {}
        self._ids: set[str] = set()
        self._awaited: set[str] = set()
        self.read = self.committed = 0

    def update(self) -> None:
        """Read on."""
        for path in self._crew.producer_journals():
            for line in self._producers.setdefault(path, JournalTail(path)).new_lines():
                if line.startswith('["committed"'):
                    self.committed += 1
                    self._awaited.add(line.split('"')[3])
        for line in self._reader.new_lines():
            self.read += 1
            self._ids.add(line.split('"')[3])

    @property
    def distinct(self) -> int:
        """How many messages have been read, repeats not counted."""
        return len(self._ids)

    @property
    def missing(self) -> int:
        """How many of those that were committed have not been read."""
        return len(self._awaited - self._ids)


def run_proof(plan: ProofPlan, servers: Servers, report: Report) -> ProofOutcome:
    """Run the workload with its faults on the servers, and check what came of it. Everything made is removed.

    Raises:
        OperatorError: it could not be run.
    """
    own = Belongings.of(plan.seed)
    directory = Path(tempfile.mkdtemp(prefix="outbox-prove-"))
    is_kept = False
    try:
        with place.furnished(servers, own, report) as dsn:
            outcome = _Run(plan, servers, own, dsn, directory).run(report)
        is_kept = not outcome.kept
        return replace(outcome, journals=directory if is_kept else None)
    except ChildError:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)


class _Run:
    """One run while its place is there."""

    def __init__(self, plan: ProofPlan, servers: Servers, own: Belongings, dsn: str, directory: Path) -> None:
        self._plan, self._servers, self._own = plan, servers, own
        self._dsn, self._directory = dsn, directory
        self._report: Report = lambda line: None
        self._began = time.monotonic()

    def run(self, report: Report) -> ProofOutcome:
        """Play, settle and check."""
        self._report = report
        work = CrewWork(
            self._own.topic,
            self._own.group,
            place.PARTITIONS,
            self._plan.seed,
            self._plan.rate,
            self._plan.delivery,
            self._directory,
        )
        variables = crew_environment(self._dsn, self._servers.bootstrap_servers, self._servers.kafka)
        with (
            self._servers.connect(self._own.database) as conn,
            Children(self._directory, variables) as children,
        ):
            crew = Crew(work, children)
            faults = Faults(crew, conn, self._plan.faults, self._plan.seed)
            progress = RunProgress(crew)
            crew.start()
            self._await_first(crew, progress)
            self._play(crew, faults, progress)
            self._report("settling: no more faults, producers stop")
            self._settle(crew, conn, progress)
            return self._check(crew, conn, faults)

    def _await_first(self, crew: Crew, progress: RunProgress) -> None:
        """Wait for the first message: what cannot work at all is found before anything is claimed."""
        deadline = time.monotonic() + FIRST_S
        while not progress.read:
            crew.tend()
            if crew.unexpected or time.monotonic() > deadline:
                lines = "\n".join(f"{one.name}: {one.child.last_lines()}" for one in crew.members)
                reason = crew.unexpected[0][1] if crew.unexpected else "nothing arrived"
                raise ChildError(f"the run could not begin: {reason}\n{lines}")
            time.sleep(0.1)
            progress.update()
        self._report(f"messages flow; {self._plan.seconds:.0f} s of {self._plan.rate:g} transactions/s begin")

    def _play(self, crew: Crew, faults: Faults, progress: RunProgress) -> None:
        chance = random.Random(f"{self._plan.seed} peace")  # noqa: S311 (no secret)
        begin = time.monotonic()
        told = begin
        while (now := time.monotonic()) - begin < self._plan.seconds:
            crew.tend_for(min(chance.uniform(*PEACE_S), begin + self._plan.seconds - now))
            if self._plan.faults:
                fault = faults.throw()
                self._report(f"{time.monotonic() - begin:6.1f} s  {fault.text}")
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                progress.update()
                self._report(
                    f"{told - begin:6.1f} s  {progress.committed:,} committed, {progress.read:,} read"
                )

    def _settle(self, crew: Crew, conn: Connection, progress: RunProgress) -> None:
        """Wait until all that was committed has arrived and was applied, or nothing more comes."""
        crew.stop(Role.PRODUCER)
        last, before = time.monotonic(), (-1, -1)
        while True:
            crew.tend_for(0.2)
            progress.update()
            applied = _count(conn)
            if not progress.missing and applied >= progress.distinct and not _is_open(conn):
                break
            if (progress.read, applied) != before:
                last, before = time.monotonic(), (progress.read, applied)
            if time.monotonic() - last > SETTLE_S:
                self._report(f"nothing has arrived for {SETTLE_S:.0f} s")
                break
        # In this order: when the relays have ended, nothing can come any more, and the reader reads to the end.
        crew.stop(Role.CHECKER)
        crew.stop(Role.RELAY)
        crew.stop_reader()
        crew.stop(Role.CONSUMER)

    def _check(self, crew: Crew, conn: Connection, faults: Faults) -> ProofOutcome:
        topic = self._own.topic
        lines = [line for path in crew.producer_journals() for line in JournalTail(path).new_lines()]
        sent = list(sent_messages(topic, lines).values())
        read = list(read_records(topic, JournalTail(crew.reader_journal).new_lines()))
        if not read:
            raise PlaceError("nothing was read, so nothing is shown")
        applied = [name for (name,) in conn.execute(SQL["applied"]).fetchall()]
        recorded = [RecordedPlace(*row) for row in conn.execute(SQL["places"]).fetchall()]
        once = self._plan.delivery != AT_LEAST_ONCE
        history = RunHistory(
            sent, read, applied, recorded, [] if once else faults.outages(), allows_unknown_offsets=once
        )
        findings = check_history(history)
        course = course_of(sent, read)
        return ProofOutcome(
            seed=self._plan.seed,
            delivery=self._plan.delivery,
            servers=f"PostgreSQL {_version(conn)}, Kafka at {self._servers.bootstrap_servers}",
            fates=Counter(one.fate for one in sent),
            read=len(read),
            applied=len(applied),
            findings=findings,
            faults=faults.thrown,
            unexpected=[text for _, text in crew.unexpected],
            course=course[0] if course else None,
            latency=course[1] if course else None,
            seconds=time.monotonic() - self._began,
        )


def _count(conn: Connection) -> int:
    row = conn.execute(SQL["applied_count"]).fetchone()
    return 0 if row is None else int(row[0])


def _is_open(conn: Connection) -> bool:
    row = conn.execute(SQL["is_open"]).fetchone()
    return row is not None and bool(row[0])


def _version(conn: Connection) -> str:
    return str(conn.info.parameter_status("server_version"))
