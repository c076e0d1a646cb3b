"""The relay: opens sessions, one after the other, until it is told to stop.

It starts before PostgreSQL or Kafka do, outlives their restarts, and never skips: while one of them is away, or
PostgreSQL refuses what the relay needs (a privilege that was revoked, a partition that is missing, a schema that is
being made again), it waits and logs why. A session that failed is followed by the next one after a pause; the pause
grows until a session has recorded something, or has been quiet for a while, and grows further where messages on the
wire were not recorded, because each session publishes those again.

What no waiting repairs ends the process: a schema that is newer than this version, another relay that holds the
lanes, Kafka settings that are refused. An error of a session's own while it publishes or records does not: it
is logged with its place, and the session starts over from what is recorded, after a pause that grows to a
minute. Any other exception is a defect, and ends the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from outbox_relay.database.connections import DatabaseUnreachableError, connect
from outbox_relay.database.partitions_ahead import ensure_at_start
from outbox_relay.database.reasons import is_away, may_heal, reason
from outbox_relay.database.schema import SchemaError, require_current
from outbox_relay.logs import Log
from outbox_relay.publisher import lease
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.finder import PAGE, prepare_session
from outbox_relay.publisher.kafka import new_admin, new_producer, producer_settings, readable
from outbox_relay.publisher.lease import LanesHeldError, LanesLockedError
from outbox_relay.publisher.overdue import PATIENCE_S, Overdue
from outbox_relay.publisher.probe import PartitionProbe
from outbox_relay.publisher.producers import Producers
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.topic_lookup import TopicLookup
from outbox_relay.publisher.topics import Refresher, TopicBook
from outbox_relay.publisher.upkeep import Upkeep

log = Log("relay")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
LAST_PAUSE_REPEATING_S = 60.0
"""The longest pause after sessions that published what they could not record: each repeats those messages."""
QUIET_S = 10.0
"""A session that lasted so long and left nothing unrecorded has made progress, even if there was nothing to do."""
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
    ack_timeout: float = PATIENCE_S
    report_every: float = 10.0
    sweep_every: float = 600.0
    stalled_after: float = 60.0
    """Without a turn of its loop for so long, and without a statement that runs, the relay gives up its lanes."""


class Relay:
    """Publishes what is committed, until `stop()` is called.

    Raises from `run()`:
        LanesHeldError: another relay is running. A lease left by a dead one is waited for.
        LeaseLostError: another relay took over while this one was paused or cut off.
        SchemaError: the schema is newer than this version; or, at the start, missing or older.
        KafkaSettingError: a Kafka setting is unknown or would break a promise.
        UnsettledError: stopped, but messages on the wire were not acknowledged in time; they will be published
            again by the next relay.
    """

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._owner = lease.owner_name()
        named = {"client.id": f"outbox-relay-{self._owner.replace(':', '-')}", **options.kafka}
        self._settings = producer_settings(options.bootstrap_servers, named)
        self._stopping = False
        self._started = False
        self._unsettled = 0
        self._recorded = False
        self._published = 0
        self._held_since: float | None = None
        self._pause = 0.0
        self.on_turn: Callable[[Session], None] | None = None

    @property
    def owner(self) -> str:
        """This instance's name in its lease: host, process id and a random part."""
        return self._owner

    @property
    def client_id(self) -> str:
        """The name under which brokers see this instance in their logs, metrics and quotas."""
        return str(self._settings["client.id"])

    def stop(self) -> None:
        """Ask the relay to stop; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Run until stopped."""
        while not self._stopping:
            self._recorded, self._held_since = False, None
            try:
                self._wait_for_kafka()
                with self._connect() as conn:
                    self._session(conn)
            except SchemaError as error:
                if not self._started or error.is_newer:
                    raise
                self._pause_after(error)
            except (DatabaseUnreachableError, psycopg.Error) as error:
                if not may_heal(error):
                    raise
                self._pause_after(error)
            except KafkaException as error:
                self._pause_after(error)
        if self._unsettled:
            raise UnsettledError(
                f"PostgreSQL was away when the relay stopped: {self._unsettled} messages on the wire are not "
                "recorded; the next relay publishes them again"
            )

    def _pause_after(self, error: Exception) -> None:
        """Log why a session ended, and wait before the next one."""
        longest = LAST_PAUSE_REPEATING_S if self._unsettled else LAST_PAUSE_S
        self._pause = FIRST_PAUSE_S if self._made_progress() else min(self._pause * 2, longest)
        fields = reason(error)
        if isinstance(error, KafkaException):
            event, fields = "Kafka failed, trying again", {"error": readable(error)}
        else:
            event = "PostgreSQL is away" if is_away(error) else "PostgreSQL refused, trying again"
        log.warning(event, **fields, unrecorded=self._unsettled, next_try_in_s=self._pause)
        self._sleep(self._pause)

    def _made_progress(self) -> bool:
        """Return whether the session that ended recorded something, or was quiet for a while; or was the first."""
        quiet = self._held_since is not None and time.monotonic() - self._held_since >= QUIET_S
        return self._recorded or (quiet and not self._unsettled) or not self._pause

    def _connect(self) -> psycopg.Connection[Any]:
        return self._connect_as("outbox relay")

    def _connect_as(self, name: str) -> psycopg.Connection[Any]:
        return connect(self._options.dsn, application_name=name, silent_after=self._options.lease)

    def _session(self, conn: psycopg.Connection[Any]) -> None:
        require_current(conn)
        prepare_session(conn, self._options.lease)
        ensure_at_start(conn, self._sleep)
        held = self._take(conn)
        if held is None:
            return
        renewal = Renewal(
            held,
            lambda: self._connect_as("outbox relay lease"),
            conn.info.backend_pid,
            stalled_after=self._options.stalled_after,
        )
        renewal.start()
        try:
            self._publish(conn, held, renewal)
        finally:
            renewal.stop()

    def _publish(self, conn: psycopg.Connection[Any], held: lease.Lease, renewal: Renewal) -> None:
        ahead = ReadAhead(self._connect, self._options.page)
        upkeep = Upkeep(
            lambda: self._connect_as("outbox relay upkeep"), sweep_every=self._options.sweep_every
        )
        read = TopicLookup(lambda: new_admin(self._settings)).read
        refresher = Refresher(lambda: self._connect_as("outbox relay topics"), read)
        overdue = Overdue(PartitionProbe(new_admin(self._settings)), patience=self._options.ack_timeout)

        def new_publisher(conn: psycopg.Connection[Any]) -> Publisher:
            return Publisher(Producers(self._settings), TopicBook(conn, read, refresher))

        session = Session(
            conn,
            held,
            new_publisher,
            ahead,
            upkeep,
            renewal=renewal,
            overdue=overdue,
            page=self._options.page,
        )
        session.stopping = lambda: self._stopping
        log.info("lanes taken", owner=self._owner, epoch=held.epoch, lanes=sorted(held.progress))
        self._started, self._held_since = True, time.monotonic()
        upkeep.start()
        try:
            self._loop(session)
            left = session.finish(self._options.shutdown_timeout)
        except BaseException:
            self._unsettled = session.unsettled
            session.abandon()
            raise
        finally:
            self._recorded = session.counts.recorded > 0
            self._published += session.counts.published
            upkeep.stop()
            ahead.close()
            overdue.close()
            refresher.close()
        self._unsettled = 0
        log.info("stopped", published=self._published, unsettled=left)
        if left:
            raise UnsettledError(
                f"{left} messages were not acknowledged by Kafka before the relay stopped; "
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
            except LanesLockedError as locked:
                log.warning(
                    "the lanes are locked, waiting", held_by=locked.holders or "a session that has ended"
                )
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
