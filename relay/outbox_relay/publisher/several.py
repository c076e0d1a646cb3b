"""One process for several databases: a relay for each, in a thread of its own.

Relays share nothing but the process, and what they know of their servers' logs (wal.py): each has its own
connections, lease, producer and pauses. What happens between any two lines:

- A database or its brokers go away: the relay of it waits, as it does alone; the others go on.
- An error ends one relay (a schema that is newer, relays that do not agree, a defect): it is logged with the
  database's name, and another relay of that database starts after a pause that grows to a minute.
- The process is asked to stop while a relay starts again: the new one stops before it takes lanes.
- The process dies: as if each relay had died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from outbox.backoff import Backoff
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay, UnsettledError
from outbox_relay.publisher.vitals import Vitals
from outbox_relay.publisher.wal import Positions
from outbox_relay.text import logs
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("relay")

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
CALM_S = 120.0
"""A relay that ran for so long before it failed starts again after the shortest pause."""


class SomeFailedError(OperatorError):
    """The process has stopped, and the relays of some databases had failed or left messages unsettled."""


class Relays:
    """Runs a relay for each of several databases until `stop()` is called."""

    def __init__(self, databases: Mapping[str, RelayOptions]) -> None:
        """Prepare a relay for each database.

        Args:
            databases: the options of each relay by the name of its database, which the log shows.

        Raises:
            KafkaSettingError: a Kafka setting is unknown or would break a promise.
        """
        positions = Positions()
        self._databases = {name: replace(each, positions=positions) for name, each in databases.items()}
        self._running = {name: Relay(options) for name, options in self._databases.items()}
        self._stopping = threading.Event()
        self._failed: dict[str, str] = {}

    def stop(self) -> None:
        """Ask all relays to stop; safe in a signal handler."""
        self._stopping.set()
        for relay in self._running.values():
            relay.stop()

    def vitals(self) -> dict[str, Vitals]:
        """Return what each relay shows of itself, by the name of its database."""
        return {name: relay.vitals for name, relay in list(self._running.items())}

    def run(self) -> None:
        """Run until stopped, and until every relay has settled.

        Raises:
            SomeFailedError: a relay had failed when it was to stop, or left messages unsettled.
        """
        threads = [
            threading.Thread(target=self._keep_running, args=(name,), name=f"relay of {name}")
            for name in self._databases
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise SomeFailedError("\n".join(f"{name}: {text}" for name, text in self._failed.items()))

    def _keep_running(self, name: str) -> None:
        with logs.context(database=name):
            backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
            while not self._run_once(name, backoff):
                self._running[name] = Relay(self._databases[name])

    def _run_once(self, name: str, backoff: Backoff) -> bool:
        """Run one relay to its end; return whether it was the last one."""
        relay, began = self._running[name], time.monotonic()
        if self._stopping.is_set():  # It was made after the others were asked to stop.
            relay.stop()
        try:
            relay.run()
        except UnsettledError as error:
            self._failed[name] = str(error)
            return True
        except Exception as error:  # noqa: BLE001  (the relays of other databases go on)
            if time.monotonic() - began > CALM_S:
                backoff.reset()
            pause = backoff.next()
            log.error("the relay of one database failed", exception=error, next_try_in_s=pause)
            if self._stopping.wait(pause):
                self._failed[name] = str(error)
                return True
            return False
        return True
