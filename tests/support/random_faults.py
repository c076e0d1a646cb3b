"""Faults thrown at random at the relay, PostgreSQL and Kafka while business transactions go on."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from outbox_local.stack.api import Stack
from tests.support.concurrent_writers import Writers
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

LEASE_S = 2


class Relays:
    """At least one relay runs, whatever becomes of it: one that died is replaced, as a supervisor would do."""

    def __init__(self, dsn: str, bootstrap_servers: str) -> None:
        self._dsn, self._bootstrap_servers = dsn, bootstrap_servers
        self._exit = ExitStack()
        self._all: list[RelayProcess] = []
        self.started = 0

    def start(self) -> RelayProcess:
        """Start another one."""
        options = ("--lease", str(LEASE_S), "--page", "500")
        relay = self._exit.enter_context(RelayProcess(self._dsn, self._bootstrap_servers, *options))
        self._all.append(relay)
        self.started += 1
        return relay

    def one(self) -> RelayProcess:
        """Return the youngest relay that lives, started if there is none."""
        living = [relay for relay in self._all if relay.is_running]
        return living[-1] if living else self.start()

    def serving(self) -> RelayProcess:
        """Return a relay that has had the lanes; one that is refused meanwhile is replaced."""

        def ready() -> RelayProcess | None:
            relay = self.one()
            return relay if relay.find("lanes taken") else None

        return wait_until(ready, "a relay holds the lanes")

    def stop(self) -> None:
        """Stop all that live; every one of them ends without a traceback."""
        for relay in self._all:
            if relay.is_running:
                relay.terminate()
        for relay in self._all:
            relay.wait()
            assert "Traceback" not in relay.output(), relay.output()

    @property
    def repairs(self) -> list[str]:
        """What relays said of messages that only the sweep found: they would have been lost without it."""
        return [
            str(event)
            for relay in self._all
            for event in relay.events
            if str(event["event"]).startswith("messages were recorded as published")
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.__exit__(kind, error, trace)


class RandomFaults:
    """Throws faults, each kind in turn and in random order; how long one lasts is counted in transactions.

    `journal` names them with the second they came at, for the message of a failure.
    """

    def __init__(self, stack: Stack, relays: Relays, writers: Writers, chance: random.Random) -> None:
        self._stack, self._relays, self._writers, self._chance = stack, relays, writers, chance
        self._begin = time.monotonic()
        self.journal: list[str] = []
        self.thrown: Counter[str] = Counter()
        self._faults = (
            self.kill_relay,
            self.kill_relay,
            self.restart_relay,
            self.pause_relay,
            self.kill_postgres,
            self.kill_postgres,
            self.kill_kafka,
            self.stop_kafka,
        )

    def run(self, seconds: float) -> None:
        """Throw faults for so long, each kind once at least."""
        while time.monotonic() - self._begin < seconds:
            for fault in self._chance.sample(self._faults, len(self._faults)):
                if time.monotonic() - self._begin >= seconds and self.thrown[fault.__name__]:
                    continue
                self._relays.one()
                if self._chance.random() < 0.7:
                    self._relays.serving()  # else the fault may meet a relay that is starting
                self._go_on(10, 200)
                self.thrown[fault.__name__] += 1
                self.journal.append(f"{time.monotonic() - self._begin:.1f} s {fault.__name__}")
                sys.stderr.write(f"{self.journal[-1]}, {self._writers.transactions} transactions\n")
                fault()

    def kill_relay(self) -> None:
        """SIGKILL."""
        self._relays.one().kill()

    def restart_relay(self) -> None:
        """SIGTERM, with its successor waiting already."""
        old = self._relays.serving()
        old.terminate()
        self._relays.start()
        old.wait()

    def pause_relay(self) -> None:
        """SIGSTOP past its lease; a second one takes over, and sometimes dies before the first one wakes up."""
        first = self._relays.serving()
        first.pause()
        second = self._relays.start()
        second.wait_until_running()
        self._go_on(5, 100)
        if self._chance.random() < 0.3:
            self.kill_postgres()
        if self._chance.random() < 0.3:
            second.kill()
        first.go_on()

    def kill_postgres(self) -> None:
        """SIGKILL to the postmaster and every backend; sometimes the relay dies meanwhile."""
        self._stack.kill_postgres()
        self._perhaps_kill_relay()
        self._stack.start_postgres()

    def kill_kafka(self) -> None:
        """SIGKILL; messages pile up, the page cache of the machine survives."""
        self._stack.kill_kafka()
        self._go_on(10, 300)
        self._perhaps_kill_relay()
        self._stack.start_kafka()

    def stop_kafka(self) -> None:
        """Shut the broker down in order."""
        self._stack.stop_kafka()
        self._go_on(10, 300)
        self._stack.start_kafka()

    def _perhaps_kill_relay(self) -> None:
        if self._chance.random() < 0.3:
            self.kill_relay()

    def _go_on(self, least: int, most: int) -> None:
        self._writers.wait_for(self._chance.randint(least, most))
