"""The processes of a run: relays, checker, producers and consumers, each started again when it has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

from outbox_relay.proving.children import Child, ChildError, Children
from outbox_relay.proving.reader import READY, ReaderWork
from outbox_relay.proving.workload import Work

MANY_RESTARTS = 25
"""Ends that no fault explains, after which a run gives up."""
RELAY_LEASE_S = 3
STOP_S = 45.0
START_S = 60.0
STEP_S = 0.05


class Role(StrEnum):
    """What a process does."""

    RELAY = "relay"
    CHECKER = "checker"
    PRODUCER = "producer"
    CONSUMER = "consumer"


COUNTS = {Role.RELAY: 2, Role.CHECKER: 1, Role.PRODUCER: 2, Role.CONSUMER: 2}
"""How many of each there are."""


@dataclass(frozen=True, slots=True)
class CrewWork:
    """What the processes do."""

    topic: str
    group: str
    partitions: int
    seed: int
    rate: float
    delivery: str
    directory: Path
    """Where logs and journals are."""


@dataclass(slots=True)
class Member:
    """One place in the crew, and the process that fills it now."""

    role: Role
    name: str
    child: Child
    was_asked_to_end: bool = False
    """Whether a fault ended it, or is about to."""


@dataclass(slots=True)
class Crew:
    """All processes of a run. The reader is apart from the members: no fault happens to it."""

    work: CrewWork
    children: Children
    members: list[Member] = field(default_factory=list)
    unexpected: list[tuple[float, str]] = field(default_factory=list)
    """Ends that no fault explains: when, and what ended how."""
    reader: Child | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def reader_journal(self) -> Path:
        """What was read from Kafka."""
        return self.work.directory / "records.jsonl"

    def producer_journals(self) -> list[Path]:
        """What each producer knew, one file for each process."""
        return sorted(self.work.directory.glob("producer-*.jsonl"))

    def start(self) -> None:
        """Start everything, and wait until the reader reads."""
        work = self.work
        reading = ReaderWork(work.topic, work.partitions, str(self.reader_journal))
        self.reader = self.children.start(
            "reader", "-m", "outbox_relay.proving.reader", reading.as_argument()
        )
        self._wait_until_said(self.reader, READY)
        for role, wanted in COUNTS.items():
            for number in range(1, wanted + 1):
                name = f"{role} {number}" if wanted > 1 else str(role)
                self.members.append(Member(role, name, self._start(role, name)))

    def tend(self) -> None:
        """Start again what has ended, as a supervisor does.

        Raises:
            ChildError: the reader ended, or processes end again and again.
        """
        if self.reader is not None and not self.reader.running:
            raise ChildError(f"the reader ended before its time:\n{self.reader.last_lines()}")
        for member in self.members:
            code = member.child.code
            if code is None:
                continue
            if not member.was_asked_to_end:
                self.unexpected.append((time.time(), f"{member.name} ended with exit code {code}"))
                if len(self.unexpected) > MANY_RESTARTS:
                    raise ChildError(
                        f"{member.name} ends again and again; the end of {member.child.log}:\n"
                        f"{member.child.last_lines()}"
                    )
            member.was_asked_to_end = False
            member.child = self._start(member.role, member.name)

    def tend_for(self, seconds: float) -> None:
        """Tend them for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tend()
            time.sleep(STEP_S)

    def stop(self, *roles: Role) -> None:
        """Ask those of these roles to end, and wait; they are members no more."""
        leaving = [member for member in self.members if member.role in roles]
        self.members = [member for member in self.members if member.role not in roles]
        for member in leaving:
            member.child.ask_to_stop()
        for member in leaving:
            if not ended(member):
                raise ChildError(
                    f"{member.name} did not end well (exit code {member.child.code}); the end of {member.child.log}:\n"
                    f"{member.child.last_lines()}"
                )

    def stop_reader(self) -> None:
        """Let the reader read to the end that the topic has now."""
        if self.reader is not None:
            self.reader.ask_to_stop()
            self.reader.wait(STOP_S)
            self.reader = None

    def _start(self, role: Role, name: str) -> Child:
        return self.children.start(name, *self._command(role, name))

    def _command(self, role: Role, name: str) -> tuple[str, ...]:
        work = self.work
        if role is Role.RELAY:
            options = ("--lease", str(RELAY_LEASE_S), "--delivery", work.delivery)
            return "-m", "outbox_relay", "relay", "run", *options
        if role is Role.CHECKER:
            return "-m", "outbox_relay", "checker", "run"
        if role is Role.CONSUMER:
            return "-m", "outbox_relay.proving.applier", work.group, work.topic
        # Each process has a journal of its own: one that is killed may leave half a line.
        own = f"{name}-{next(self._numbers)}".replace(" ", "-")
        journal = str(work.directory / f"{own}.jsonl")
        rate = work.rate / COUNTS[Role.PRODUCER]
        argument = Work(work.topic, own, work.seed, rate, journal).as_argument()
        return "-m", "outbox_relay.proving.workload", argument

    @staticmethod
    def _wait_until_said(child: Child, text: str) -> None:
        deadline = time.monotonic() + START_S
        while not child.has_said(text):
            if not child.running or time.monotonic() > deadline:
                raise ChildError(f"{child.name} does not begin:\n{child.last_lines()}")
            time.sleep(STEP_S)


def ended(member: Member) -> bool:
    """Wait for the end of a process that was asked to end; return whether it did as it was asked."""
    deadline = time.monotonic() + STOP_S
    while member.child.code is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_S)
    # One that has only just started does not know yet what SIGTERM asks of it.
    return member.child.code in (0, -signal.SIGTERM)


def crew_environment(dsn: str, bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return what points every process at the place of the run."""
    return {
        "OUTBOX_DSN": dsn,
        "OUTBOX_CALLBACK_DSN": dsn,
        "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers,
        "OUTBOX_KAFKA_CONFIG": " ".join(f"{name}={value}" for name, value in kafka.items()),
    }
