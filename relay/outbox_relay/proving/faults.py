"""Faults: what is done to processes that the run started itself, and to their sessions; each is seen to take effect."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from outbox_relay.database.connections import Connection
from outbox_relay.operations import relays
from outbox_relay.proving.crew import RELAY_LEASE_S, Crew, Member, Role, ended
from outbox_relay.proving.history import Outage
from outbox_relay.proving.workload import SQL
from outbox_relay.text.errors import OperatorError

STILL_S = 5.0
"""How long a process may take to stand still, once it is asked to."""
SETTLES_S = 10.0
"""How long a relay that wakes up, or loses its session, may go on with what it had begun."""
WEIGHTS = {Role.RELAY: 5, Role.PRODUCER: 2, Role.CONSUMER: 2, Role.CHECKER: 1}
LEADER = 0.8
"""How often a fault of a relay happens to the one that leads."""


class FaultKind(StrEnum):
    """What is done."""

    KILL = "kill"
    PAUSE = "pause"
    STOP = "stop"
    DISCONNECT = "disconnect"


FAULT_TEXTS = {
    FaultKind.KILL: "killed (SIGKILL), and started again",
    FaultKind.PAUSE: "paused (SIGSTOP)",
    FaultKind.STOP: "stopped (SIGTERM), and started again",
    FaultKind.DISCONNECT: "lost a session of PostgreSQL (pg_terminate_backend)",
}


class NoEffectError(OperatorError):
    """A fault did not come about, so the run shows nothing of it."""


class Fault(NamedTuple):
    """One fault that took effect."""

    kind: FaultKind
    victim: str
    role: Role | None
    """None: of a session whose name does not state it."""
    at: float
    until: float

    @property
    def text(self) -> str:
        """What happened, in words."""
        lasted = f" for {self.until - self.at:.1f} s" if self.kind is FaultKind.PAUSE else ""
        return f"{self.victim} {FAULT_TEXTS[self.kind]}{lasted}"


class Faults:
    """Throws faults: each kind once before any comes again, the first of each at a relay."""

    def __init__(self, crew: Crew, conn: Connection, kinds: Sequence[FaultKind], seed: int) -> None:
        self._crew, self._conn, self._kinds = crew, conn, list(kinds)
        self._chance = random.Random(f"{seed} faults")  # noqa: S311 (no secret)
        self._next: list[FaultKind] = []
        self.thrown: list[Fault] = []

    def throw(self) -> Fault:
        """Throw the next one; it is over when this returns.

        Raises:
            NoEffectError: it did not come about.
        """
        self._crew.tend()
        if not self._next:
            self._next = self._chance.sample(self._kinds, len(self._kinds))
        kind = self._next.pop()
        role = Role.RELAY
        if any(one.kind is kind for one in self.thrown):
            role = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fault = self._disconnect(role) if kind is FaultKind.DISCONNECT else self._at_process(kind, role)
        self.thrown.append(fault)
        return fault

    def outages(self) -> list[Outage]:
        """Return when a message may come again: around what happened to relays."""
        slack = {
            FaultKind.KILL: 0.0,
            FaultKind.STOP: 0.0,
            FaultKind.PAUSE: SETTLES_S,
            FaultKind.DISCONNECT: SETTLES_S,
        }
        found = [Outage(one.at, one.until + slack[one.kind]) for one in self.thrown if one.role is Role.RELAY]
        return found + [
            Outage(at - SETTLES_S, at) for at, text in self._crew.unexpected if text.startswith(Role.RELAY)
        ]

    def _at_process(self, kind: FaultKind, role: Role) -> Fault:
        member = self._victim(role)
        at = time.time()
        if kind is FaultKind.PAUSE:
            self._pause(member)
        else:
            member.was_asked_to_end = True
            if kind is FaultKind.KILL:
                member.child.kill()
                worked = member.child.was_killed
            else:
                member.child.ask_to_stop()
                worked = ended(member)
            if not worked:
                raise NoEffectError(f"{member.name} was to be {FAULT_TEXTS[kind]}, and ended otherwise")
        fault = Fault(kind, member.name, role, at, time.time())
        self._crew.tend()
        return fault

    def _victim(self, role: Role) -> Member:
        candidates = [member for member in self._crew.members if member.role is role]
        if role is Role.RELAY and self._chance.random() < LEADER:
            leading = {one.owner for one in relays.everything(self._conn) if one.lanes}
            leaders = [one for one in candidates if any(f":{one.child.pid}:" in owner for owner in leading)]
            candidates = leaders or candidates
        return self._chance.choice(candidates)

    def _pause(self, member: Member) -> None:
        """Let it stand still, a relay for longer than its lease, while the others go on."""
        seconds = (
            self._chance.uniform(1.2, 2) * RELAY_LEASE_S
            if member.role is Role.RELAY
            else self._chance.uniform(1, 3)
        )
        if not member.child.pause(STILL_S):
            raise NoEffectError(
                f"{member.name} was to be paused, and did not stand still within {STILL_S:.0f} s"
            )
        try:
            self._crew.tend_for(seconds)
        finally:
            member.child.go_on()

    def _disconnect(self, role: Role) -> Fault:
        """End one session of a process of ours; the process connects again, or ends and is started again."""
        sessions = self._conn.execute(SQL["sessions"]).fetchall()
        if not sessions:
            raise NoEffectError("a session was to be terminated, and the database has no other than ours")
        named = [(pid, name) for pid, name in sessions if role in name]
        pid, name = self._chance.choice(named or sessions)
        at = time.time()
        row = self._conn.execute(SQL["disconnect"], {"pid": pid}).fetchone()
        if row is not None and not row[0]:
            raise NoEffectError(f"the session {pid} ({name}) was to be terminated, and is still there")
        hit = next((each for each in Role if each in name), None)
        return Fault(FaultKind.DISCONNECT, name or "a process", hit, at, time.time())


def read_kinds(text: str) -> list[FaultKind]:
    """Read `kill,pause`, or `none`.

    Raises:
        ValueError: a kind is not known.
    """
    if text == "none":
        return []
    return list(dict.fromkeys(FaultKind(part.strip()) for part in text.split(",")))
