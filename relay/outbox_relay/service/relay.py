"""The relay: opens sessions, one after the other, until it is told to stop.

It starts before PostgreSQL or Kafka do, outlives their restarts, and never skips: while one of them is away
it waits, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from outbox_relay.finder.finder import PAGE, prepare_session
from outbox_relay.lanes import lease
from outbox_relay.lanes.lease import LanesHeldError
from outbox_relay.logs import Log
from outbox_relay.publishing.errors import KafkaUnavailableError
from outbox_relay.publishing.kafka import new_admin, new_producer, producer_settings, readable
from outbox_relay.publishing.producers import Producers
from outbox_relay.publishing.publisher import Publisher
from outbox_relay.publishing.topics import TopicBook
from outbox_relay.schema import require_current
from outbox_relay.service.ahead import ReadAhead
from outbox_relay.service.session import Session
from outbox_relay.service.upkeep import Upkeep
from outbox_relay.settings import DatabaseUnreachableError, connect

log = Log("relay")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
BUSY_S = 1.0


class UnsettledError(RuntimeError):
    """The relay was told to stop and Kafka did not acknowledge in time what was on the wire."""


@dataclass(slots=True)
class RelayOptions:
    """How a relay runs; times in seconds."""

    dsn: str
    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    lease: float = 10.0
    poll_min: float = 0.001
    poll_max: float = 0.02
    page: int = PAGE
    shutdown_timeout: float = 30.0
    report_every: float = 10.0
    sweep_every: float = 600.0


class Relay:
    """Publishes what is committed, until `stop()` is called.

    Raises from `run()`:
        LanesHeldError: another relay is running. A lease left by a dead one is waited for.
        LeaseLostError: another relay took over while this one was paused or cut off.
        SchemaError: the schema is missing or of another version.
        KafkaSettingError: a Kafka setting is unknown or would break a promise.
        UnsettledError: stopped, but messages on the wire were not acknowledged in time; they will be published
            again by the next relay.
    """

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._settings = producer_settings(options.bootstrap_servers, options.kafka)
        self._owner = lease.owner_name()
        self._stopping = False
        self._started = False
        self._unsettled = 0
        self.on_turn: Callable[[Session], None] | None = None

    def stop(self) -> None:
        """Ask the relay to stop; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Run until stopped."""
        pause = FIRST_PAUSE_S
        while not self._stopping:
            try:
                self._wait_for_kafka()
                with self._connect() as conn:
                    self._session(conn)
                pause = FIRST_PAUSE_S
            except (DatabaseUnreachableError, psycopg.OperationalError, psycopg.InterfaceError) as error:
                log.warning("PostgreSQL is away", error=str(error).strip(), next_try_in_s=pause)
                self._sleep(pause)
                pause = min(pause * 2, LAST_PAUSE_S)
        if self._unsettled:
            raise UnsettledError(
                f"PostgreSQL was away when the relay stopped: {self._unsettled} messages on the wire are not "
                "recorded; the next relay publishes them again"
            )

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._options.dsn, application_name="outbox relay")

    def _session(self, conn: psycopg.Connection[Any]) -> None:
        require_current(conn)
        prepare_session(conn)
        held = self._take(conn)
        if held is None:
            return
        ahead = ReadAhead(self._connect, self._options.page)
        upkeep = Upkeep(self._connect, sweep_every=self._options.sweep_every)
        session = Session(conn, held, self._publisher, ahead, upkeep, page=self._options.page)
        session.stopping = lambda: self._stopping
        log.info("lanes taken", owner=self._owner, epoch=held.epoch, lanes=sorted(held.progress))
        self._started = True
        upkeep.start()
        try:
            self._loop(session)
            left = session.finish(self._options.shutdown_timeout)
        except BaseException:
            self._unsettled = session.unsettled
            session.abandon()
            raise
        finally:
            upkeep.stop()
            ahead.close()
        self._unsettled = 0
        log.info("stopped", published=session.counts.published, unsettled=left)
        if left:
            raise UnsettledError(
                f"{left} messages were not acknowledged by Kafka within {self._options.shutdown_timeout:.0f} s; "
                "the next relay publishes them again"
            )

    def _take(self, conn: psycopg.Connection[Any]) -> lease.Lease | None:
        """Take the lanes. A lease that its holder does not renew is waited for; a living holder refuses us."""
        first: LanesHeldError | None = None
        while not self._stopping:
            try:
                return lease.take(conn, self._owner, self._options.lease)
            except LanesHeldError as held:
                renewed = first is not None and held.owner == first.owner and held.seconds > first.seconds
                if renewed or (first is not None and held.owner != first.owner):
                    raise
                if first is None:
                    log.info("lanes are held", owner=held.owner, lease_ends_in_s=held.seconds)
                first = held
                self._sleep(min(held.seconds + 0.05, 0.5))
        return None

    def _loop(self, session: Session) -> None:
        options = self._options
        wait = options.poll_min
        report_at = time.monotonic() + options.report_every
        published = 0
        while not self._stopping:
            try:
                found = session.run_once(wait)
            except KafkaUnavailableError as error:
                log.warning("Kafka is away", error=str(error))
                self._sleep(FIRST_PAUSE_S)
                continue
            now = time.monotonic()
            if found or now - session.counts.last_found < BUSY_S:
                wait = options.poll_min
            else:
                wait = min(wait * 1.5, options.poll_max)
            if self.on_turn is not None:
                self.on_turn(session)
            if now >= report_at:
                count = session.counts.published
                if count != published:
                    log.info(
                        "published",
                        messages=count - published,
                        per_second=round((count - published) / (now - report_at + options.report_every)),
                        batches=session.counts.batches,
                        polls=session.counts.polls,
                    )
                published = count
                report_at = now + options.report_every

    def _publisher(self, conn: psycopg.Connection[Any]) -> Publisher:
        producers = Producers(self._settings)
        return Publisher(producers, TopicBook(conn, producers.main, new_admin(self._settings)))

    def _wait_for_kafka(self) -> None:
        """Wait until a broker answers, so that lanes are not held by a relay that cannot publish."""
        if self._started:
            return
        producer = new_producer(self._settings)
        pause = FIRST_PAUSE_S
        while not self._stopping:
            try:
                producer.list_topics(timeout=2.0)
            except KafkaException as error:
                log.warning("Kafka is away", error=readable(error), next_try_in_s=pause)
                self._sleep(pause)
                pause = min(pause * 2, LAST_PAUSE_S)
            else:
                return

    def _sleep(self, seconds: float) -> None:
        """Sleep in short pieces, so that a signal is answered soon."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
