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
from outbox_relay.operations import relays as operations
from tests.support.bare_reader import narrow_partitions
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import Findings, compare, read_topic
from tests.support.plain_inserts import Connection, connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.sick_topics import Operators
from tests.support.terminal_lines import Tell
from tests.support.waiting import wait_until

Fault = tuple[int, Callable[[], None]]
"""How often something happens, and what."""
OPTIONS = ("--lease", "2", "--log-level", "warning")
LEFT = "SELECT (SELECT count(*) FROM outbox.waiting) + (SELECT count(*) FROM outbox.parked_key)"
SEED = int(os.environ.get("OUTBOX_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def let_pass(seconds: float) -> None:
    """Leave the system in peace, or in trouble, for a time: that is part of a fault, not a wait for luck."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, "time passes")


class Place(NamedTuple):
    """The servers, the database and the topic of one test."""

    stack: Stack
    dsn: str
    topic: str


class Chaos:
    """One relay that is always wanted, and everything that can happen to it."""

    poison = 0.0
    others: tuple[str, ...] = ()
    """Topics that are written to next to the place's own."""

    def __init__(self, stack: Stack, dsn: str, chance: random.Random) -> None:
        self._stack, self._dsn, self._chance = stack, dsn, chance
        self.relays: list[RelayProcess] = []
        self.done: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        self.relays.append(RelayProcess(self._dsn, self._stack.bootstrap_servers, *OPTIONS))

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

    @property
    def story(self) -> str:
        """What else to tell about a run."""
        return ""

    def begin(self) -> None:
        """Begin what goes on beside the faults."""

    def before_the_end(self, writers: Writers) -> None:
        """Do what is to be done while there is still written."""

    def settle(self, conn: Connection) -> None:
        """Let everything be published."""

        def published() -> bool:
            self.calm()
            row = conn.execute(
                "SELECT EXISTS (SELECT FROM outbox.message_status WHERE status = 'COMMITTED')"
            ).fetchone()
            return row == (False,)

        wait_until(published, "everything is published")
        wait_published(conn)

    def compare(self, topic: str, committed: list[tuple[str, int]]) -> Findings:
        """Compare what Kafka has of a topic with what was committed."""
        return compare(read_topic(self._stack.bootstrap_servers, topic), committed)

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


class ManyRelays(Chaos):
    """Several relays that are always wanted, one of which leads; with poison and sick topics, and who mends them."""

    poison = 0.02

    def __init__(self, place: Place, chance: random.Random, count: int) -> None:
        self._count = count
        self.operators = Operators(place.stack.bootstrap_servers, place.dsn, place.topic, SEED + 1)
        self.others = (self.operators.lost, self.operators.paused)
        super().__init__(place.stack, place.dsn, chance)
        self.keep_one_alive()

    @property
    def story(self) -> str:
        return f", operators: {dict(self.operators.done)}"

    def begin(self) -> None:
        self.operators.start()

    def before_the_end(self, writers: Writers) -> None:
        """Leave two topics sick, write on to them and to the one that is well, and let a relay die once more."""

        def have_done_all() -> bool:
            self.calm()
            writers.wait_for(0)  # raises what ended one of them
            return self.operators.have_done_all

        wait_until(have_done_all, f"all commands have succeeded once: {self.operators.done}")
        self.operators.stop()
        self.operators.sicken()
        writers.wait_for(200)
        self.kill_relay()

    def settle(self, conn: Connection) -> None:
        """Let all of the topic that is well be published, while the others are still sick; and then the others."""
        conn.execute("ANALYZE")  # as autovacuum would: the queries of this read all that was written
        well, *sick = self.operators.topics
        self._publish(well)
        for topic in sick:
            assert self.operators.waiting(topic) > 0, f"{topic} is not sick"
        assert self.operators.is_paused(self.operators.paused)
        assert not self.operators.is_in_kafka(self.operators.lost)
        self._publish(well, *sick)
        wait_until(lambda: conn.execute(LEFT).fetchone() == (0,), "no key and no topic is parked")

    def _publish(self, *topics: str) -> None:
        def published() -> bool:
            self.calm()
            self.operators.mend(topics)
            return self.operators.are_published(*topics)

        wait_until(published, f"all of {topics} is published")

    def compare(self, topic: str, committed: list[tuple[str, int]]) -> Findings:
        records = self.operators.records(topic)
        return compare(records, self.operators.wanted(topic, set(committed), records))

    def kill_kafka(self) -> None:
        with self.operators.kafka_is_needed:
            super().kill_kafka()

    def close(self) -> None:
        super().close()
        self.operators.close()

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
            chosen = self._chance.choice(operations.everything(conn) or [None])
            if chosen is not None:
                self._ask(conn, [chosen.epoch], is_draining=not chosen.is_draining)

    def calm(self) -> None:
        """Keep them alive, and let all of them have lanes."""
        self.keep_one_alive()
        with connect(self._dsn) as conn:
            self._ask(conn, [relay.epoch for relay in operations.everything(conn)], is_draining=False)

    @staticmethod
    def _ask(conn: Connection, epochs: list[int], *, is_draining: bool) -> None:
        with suppress(
            operations.LeasesLockedError
        ):  # a relay died while it took lanes, and its session has not ended
            operations.ask(conn, epochs, is_draining=is_draining)

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


def endure(make: Callable[[random.Random], Chaos], place: Place, seconds: int, tell: Tell) -> None:
    """Write for so long under this chaos, let everything be published, and compare it with what was committed."""
    _, dsn, topic = place
    tell(f"OUTBOX_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    with connect(dsn) as conn:
        narrow_partitions(conn, width=2_000, count=60)
    chaos = make(chance)
    topics = (topic, *chaos.others)
    try:
        with Writers(
            *(dsn, topic),
            seed=SEED,
            threads=6,
            keys=200,
            halves=40,
            others=chaos.others,
            poison=chaos.poison,
        ) as writers:
            chaos.begin()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                let_pass(
                    chance.uniform(0.2, 1.5)
                )  # how long the system is left in peace is part of the fault
                chaos.once()
            chaos.before_the_end(writers)
            writers.stop()
            with connect(dsn) as conn:
                chaos.settle(conn)
            committed = writers.committed()
        found = {
            name: chaos.compare(name, [one for one in committed if writers.topic_of(one[0]) == name])
            for name in topics
        }
    finally:
        chaos.close()
    duplicates = sum(one.duplicate_records for one in found.values())
    tell(f"{len(committed)} messages, {duplicates} duplicates, faults: {dict(chaos.done)}{chaos.story}")
    broken = {name: one.broken for name, one in found.items() if one.broken}
    assert not broken, f"seed {SEED}: {broken}"
    assert not chaos.tracebacks(), f"seed {SEED}: {chaos.tracebacks()[0]}"
    assert not chaos.repairs(), f"seed {SEED}: the sweep had to repair a loss: {chaos.repairs()}"
    assert len(committed) > seconds * 10, "the writers hardly wrote"
