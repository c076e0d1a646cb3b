"""Chaos: writers, and relays whose every part dies at random; a stock consumer's reading against PostgreSQL's truth.

70 % of the writers' transactions commit with synchronous_commit = off, so that a crash of PostgreSQL may take back what
was visible.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from outbox_local.stack.api import Stack
from outbox_relay.operations import relays as sharing
from tests.support.bare_reader import narrow_partitions
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.terminal_lines import Tell
from tests.support.waiting import wait_until

Fault = tuple[int, Callable[[], None]]
"""How often something happens, and what."""
LEASE = "2"
SEED = int(os.environ.get("OUTBOX_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def let_pass(seconds: float) -> None:
    """Leave the system in peace, or in trouble, for a time: that is part of a fault, not a wait for luck."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, "time passes")


class Chaos:
    """One relay that is always wanted, and everything that can happen to it."""

    def __init__(self, stack: Stack, dsn: str, chance: random.Random) -> None:
        self._stack, self._dsn, self._chance = stack, dsn, chance
        self.relays: list[RelayProcess] = []
        self.done: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        self.relays.append(
            RelayProcess(self._dsn, self._stack.bootstrap_servers, "--lease", LEASE, "--log-level", "warning")
        )

    @property
    def relay(self) -> RelayProcess:
        return self.relays[-1]

    def keep_one_alive(self) -> None:
        """Start another when the last one has ended, as a supervisor does."""
        if not self.relay.is_running:
            self.start()

    def kill_relay(self) -> None:
        self.relay.kill()
        if self._chance.random() < 0.3:
            let_pass(self._chance.uniform(0, 1))  # a supervisor takes its time; this is the fault, not a wait
        self.start()

    def pause_relay(self) -> None:
        """Let it sleep past its lease beside a successor, and wake up as a zombie."""
        zombie = self.relay
        zombie.pause()
        self.start()
        let_pass(self._chance.uniform(2.5, 4))
        zombie.go_on()

    def stop_relay(self) -> None:
        self.relay.terminate()
        self.start()

    def kill_postgres(self) -> None:
        self._stack.kill_postgres()
        self._stack.start_postgres()

    def kill_kafka(self) -> None:
        self._stack.kill_kafka()
        let_pass(self._chance.uniform(0, 1))
        self._stack.start_kafka()

    def end_sessions(self) -> None:
        with connect(self._dsn) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox relay'"
            )

    def calm(self) -> None:
        """End what would keep the rest from being published; called until all is."""
        self.keep_one_alive()

    def faults(self) -> list[Fault]:
        """Return what may happen."""
        return [
            (8, self.kill_relay),
            (4, self.pause_relay),
            (3, self.stop_relay),
            (2, self.end_sessions),
            (2, self.kill_postgres),
            (1, self.kill_kafka),
        ]

    def once(self) -> None:
        """Do one thing to the system."""
        self.keep_one_alive()
        faults = self.faults()
        fault = self._chance.choices([f for _, f in faults], [weight for weight, _ in faults])[0]
        self.done[fault.__name__] += 1
        fault()

    def close(self) -> None:
        for relay in self.relays:
            if relay.is_running:
                relay.go_on()
                relay.process.kill()
            relay.wait()

    def repairs(self) -> list[str]:
        return [
            line
            for relay in self.relays
            for line in relay.lines
            if "recorded as published and are not" in line
        ]

    def tracebacks(self) -> list[str]:
        return [relay.output() for relay in self.relays if "Traceback" in relay.output()]


class SharedChaos(Chaos):
    """Several relays that are always wanted, and share the lanes."""

    def __init__(self, stack: Stack, dsn: str, chance: random.Random, count: int) -> None:
        self._count = count
        super().__init__(stack, dsn, chance)
        self.keep_one_alive()

    @property
    def running(self) -> list[RelayProcess]:
        return [relay for relay in self.relays if relay.is_running]

    @property
    def relay(self) -> RelayProcess:
        """Any of those that run."""
        return self._chance.choice(self.running or self.relays)

    def keep_one_alive(self) -> None:
        """Keep as many running as are wanted; one too many is stopped, while it has lanes."""
        running = self.running
        for _ in range(self._count - len(running)):
            self.start()
        if len(running) > self._count + 1:
            self.relay.terminate()

    def pause_relay(self) -> None:
        """Let one sleep past its lease: the others take its lanes, and it wakes up as a zombie."""
        zombie = self.relay
        zombie.pause()
        let_pass(self._chance.uniform(2.5, 4))
        zombie.go_on()

    def roll(self) -> None:
        """Replace every relay, one after the other, as a deployment does."""
        for old in self.running:
            self.start()
            old.terminate()
            let_pass(self._chance.uniform(0, 0.5))

    def drain_relay(self) -> None:
        """Ask one to give its lanes to the others, or no longer."""
        with connect(self._dsn) as conn:
            chosen = self._chance.choice(sharing.everything(conn) or [None])
            if chosen is not None:
                self._ask(conn, [chosen.epoch], is_draining=not chosen.is_draining)

    def calm(self) -> None:
        """Keep them alive, and let all of them have lanes."""
        self.keep_one_alive()
        with connect(self._dsn) as conn:
            self._ask(conn, [relay.epoch for relay in sharing.everything(conn)], is_draining=False)

    @staticmethod
    def _ask(conn: Connection, epochs: list[int], *, is_draining: bool) -> None:
        with suppress(
            sharing.LeasesLockedError
        ):  # a relay died while it took lanes, and its session has not ended
            sharing.ask(conn, epochs, is_draining=is_draining)

    def faults(self) -> list[Fault]:
        """Return what may happen."""
        return [
            (6, self.kill_relay),
            (4, self.pause_relay),
            (3, self.stop_relay),
            (4, self.drain_relay),
            (2, self.roll),
            (2, self.end_sessions),
            (1, self.kill_postgres),
            (1, self.kill_kafka),
        ]


class Place(NamedTuple):
    """The servers, the database and the topic of one test."""

    stack: Stack
    dsn: str
    topic: str


def endure(make: Callable[[random.Random], Chaos], place: Place, seconds: int, tell: Tell) -> None:
    """Write for so long under this chaos, let everything be published, and compare it with what was committed."""
    stack, dsn, topic = place
    tell(f"OUTBOX_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    with connect(dsn) as conn:
        narrow_partitions(conn, width=2_000, count=60)
    chaos = make(chance)
    try:
        with Writers(dsn, topic, seed=SEED, threads=6, keys=200, halves=40) as writers:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                let_pass(
                    chance.uniform(0.2, 1.5)
                )  # how long the system is left in peace is part of the fault
                chaos.once()
            writers.stop()
            with connect(dsn) as conn:

                def published() -> bool:
                    chaos.calm()
                    row = conn.execute(
                        "SELECT EXISTS (SELECT FROM outbox.message_status WHERE status = 'COMMITTED')"
                    ).fetchone()
                    return row == (False,)

                wait_until(published, "everything is published")
                wait_published(conn)
            committed = writers.committed()
    finally:
        chaos.close()
    found = compare(read_topic(stack.bootstrap_servers, topic), committed)
    tell(f"{len(committed)} messages, {found.duplicate_records} duplicates, faults: {dict(chaos.done)}")
    assert not found.broken, f"seed {SEED}: {found.broken}"
    assert not chaos.tracebacks(), f"seed {SEED}: {chaos.tracebacks()[0]}"
    assert not chaos.repairs(), f"seed {SEED}: the sweep had to repair a loss: {chaos.repairs()}"
    assert len(committed) > seconds * 10, "the writers hardly wrote"
