"""Chaos: writers, and a relay whose every part dies at random; a stock consumer's reading against PostgreSQL's truth.

One relay at a time is wanted; another takes over when it dies or sleeps past its lease. 70 % of the writers'
transactions commit with synchronous_commit = off, so that a crash of PostgreSQL may take back what was visible.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest

from outbox_local.stack.api import Stack
from tests.faults.conftest import Tell
from tests.support.kafka_records import compare, read_topic
from tests.support.postgres_writers import Writers
from tests.support.postgres_writing import connect, wait_published
from tests.support.reading import narrow_partitions
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("private stack")
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

    def once(self) -> None:
        """Do one thing to the system."""
        faults: list[tuple[int, Callable[[], None]]] = [
            (8, self.kill_relay),
            (4, self.pause_relay),
            (3, self.stop_relay),
            (2, self.end_sessions),
            (2, self.kill_postgres),
            (1, self.kill_kafka),
        ]
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


@pytest.mark.feature("S-02", "S-38", "S-102")
@pytest.mark.parametrize(
    "seconds", [pytest.param(45, id="short"), pytest.param(600, id="long", marks=pytest.mark.long)]
)
def test_whatever_dies_nothing_is_lost_invented_or_overtaken(
    private_stack: Stack, private_database: str, private_topic: str, seconds: int, tell: Tell
) -> None:
    tell(f"OUTBOX_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    chaos = Chaos(private_stack, private_database, chance)
    with connect(private_database) as conn:
        narrow_partitions(conn, width=2_000, count=60)
    try:
        with Writers(private_database, private_topic, seed=SEED, threads=6, keys=200, halves=40) as writers:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                let_pass(
                    chance.uniform(0.2, 1.5)
                )  # how long the system is left in peace is part of the fault
                chaos.keep_one_alive()
                chaos.once()
            writers.stop()
            with connect(private_database) as conn:

                def published() -> bool:
                    chaos.keep_one_alive()
                    row = conn.execute(
                        "SELECT EXISTS (SELECT FROM outbox.message_status WHERE status = 'COMMITTED')"
                    ).fetchone()
                    return row == (False,)

                wait_until(published, "everything is published")
                wait_published(conn)
            committed = writers.committed()
    finally:
        chaos.close()
    found = compare(read_topic(private_stack.bootstrap_servers, private_topic), committed)
    tell(f"{len(committed)} messages, {found.duplicate_records} duplicates, faults: {dict(chaos.done)}")
    assert not found.broken, f"seed {SEED}: {found.broken}"
    assert not chaos.tracebacks(), f"seed {SEED}: {chaos.tracebacks()[0]}"
    assert not chaos.repairs(), f"seed {SEED}: the sweep had to repair a loss: {chaos.repairs()}"
    assert len(committed) > seconds * 10, "the writers hardly wrote"
