"""The relay: opens sessions, one after the other, until it is asked to stop.

It starts before PostgreSQL or Kafka do, outlives their restarts, and never skips: while one of them is away, or
PostgreSQL refuses what the relay needs (a privilege that was revoked, a partition that is missing, a schema that is
being made again), it waits and logs why. A session that failed is followed by the next one after a pause; the pause
grows until a session has recorded something, or has been quiet for a while, and grows further where messages on the
wire were not recorded, because each session publishes those again.

A relay that was paused for longer than its lease, and lost lanes, joins the others again. What no waiting repairs ends
the process: a schema that is newer than this version, relays that do not agree, Kafka settings that are refused.
An error of a session's own while it publishes or records does not: it is logged with its place, and the session
starts over from what is recorded, after a pause that grows to a minute. Any other exception is a defect, and ends the
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from outbox.backoff import Backoff
from outbox.errors import error_name
from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.database.partitions_ahead import ensure_at_start
from outbox_relay.database.reasons import is_away, is_divided, may_heal, reason
from outbox_relay.database.rights import needing
from outbox_relay.database.schema import SchemaError, require_current
from outbox_relay.publisher import lease
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.finder import prepare_session
from outbox_relay.publisher.hands.proving import require_transactions
from outbox_relay.publisher.kafka import new_producer, producer_settings, readable
from outbox_relay.publisher.lease import LanesLockedError, LeaseLostError
from outbox_relay.publisher.opening import Hands, RelayOptions
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.session import REST_AFTER_S, Session
from outbox_relay.publisher.shard import Guarantee
from outbox_relay.publisher.upkeep import Upkeep
from outbox_relay.publisher.vitals import Vitals
from outbox_relay.text.logs import Log

log = Log("relay")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
LAST_PAUSE_REPEATING_S = 60.0
"""The longest pause after sessions that published what they could not record: each repeats those messages."""
QUIET_S = 10.0
"""A session that lasted so long and left nothing unrecorded has made progress, even if there was nothing to do."""
FAILING_SESSIONS = 2
"""So many sessions that failed in a row: the relay is ready again when one has recorded something, or has lasted."""
BUSY_S = 1.0
KAFKA_AWAY = "Kafka is away"
POLL_FACTOR = 1.5
"""How much longer than the one before it each wait of a relay without traffic is."""
REST_FACTOR, REST_MOST_S = 4, 0.1
"""For a relay that rests the longest wait is so many times as long, but no longer than this: what one process pays for
each of many databases is how often it polls, and the first message afterwards comes within a tenth of a second."""


class UnsettledError(RuntimeError):
    """The relay was asked to stop and Kafka did not acknowledge in time what was on the wire."""


class Relay:
    """Leads the lanes of its shard, or stands by, until `stop()` is called.

    Raises from `run()`:
        NoStandbyError: messages shall be replicated first, and at the start PostgreSQL names no synchronous standby.
        RelayRefusedError: other relays speak another version or divide the lanes otherwise, or a pooler divides the
            relay's session.
        SchemaError: the schema is newer than this version; or, at the start, missing or older.
        KafkaSettingError: a Kafka setting is unknown or would break a promise.
        DeliveryError: exactly-once delivery is refused by Kafka, or what was sent cannot be proven.
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
        self._is_draining = False
        self._asks_kafka = True
        self._joined_at: datetime | None = None
        self._recorded_before = 0
        self._held_since: float | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._failed_in_a_row = 0
        self.vitals = Vitals()
        self.on_turn: Callable[[Any], None] | None = None

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
        with needing("outbox_relay", self._options.dsn):
            self._run_sessions()

    def _run_sessions(self) -> None:
        while not self._stopping:
            self._recorded_before, self._held_since = self.vitals.counts.recorded, None
            try:
                self._wait_for_kafka()
                with self._options.connect() as conn:
                    self._session(conn)
            except SchemaError as error:
                if not self._started or error.is_newer:
                    raise
                self._pause_after(error)
            except (DatabaseUnreachableError, psycopg.Error) as error:
                if is_divided(error):
                    raise lease.RelayRefusedError(lease.DIVIDED_SESSION) from error
                if not may_heal(error):
                    raise
                self._pause_after(error)
            except KafkaException as error:
                self._pause_after(error)
            except LeaseLostError as error:
                # It may be this relay that Kafka is away from: without lanes until it replies.
                self._asks_kafka = True
                self.vitals.leases_lost += 1
                self._pause_after(error)
                # They are the new owner's to publish again, and it lives: nothing for whoever stops this one.
                self._unsettled = 0
        if self._unsettled:
            raise UnsettledError(
                f"PostgreSQL was away when the relay stopped: {self._unsettled} messages on the wire are not "
                "recorded; the next relay publishes them again"
            )

    def _pause_after(self, error: Exception) -> None:
        """Log why a session ended, and wait before the next one."""
        longest = LAST_PAUSE_REPEATING_S if self._unsettled else LAST_PAUSE_S
        if self._makes_progress(self._unsettled):
            self._backoff.reset()
            self._failed_in_a_row = 0
        self._failed_in_a_row += 1
        pause = self._backoff.next(longest)
        fields = reason(error)
        self.vitals.failed += 1
        if isinstance(error, KafkaException):
            event, fields = "Kafka failed, trying again", {"error": readable(error)}
        elif isinstance(error, LeaseLostError):
            event = "lanes lost, joining again"
        else:
            event = "PostgreSQL is away" if is_away(error) else "PostgreSQL refused, trying again"
        refused = isinstance(error, psycopg.Error) and not is_away(error)
        self.vitals.trouble = f"{event}: {error_name(error)}" if refused else event
        log.warning(event, **fields, unrecorded=self._unsettled, next_try_in_s=pause)
        self._sleep(pause)

    def _makes_progress(self, unsettled: int) -> bool:
        """Return whether the last session has recorded something, or was quiet for a while; it may go on."""
        is_quiet = self._held_since is not None and time.monotonic() - self._held_since >= QUIET_S
        return self.vitals.counts.recorded > self._recorded_before or (is_quiet and not unsettled)

    def _session(self, conn: psycopg.Connection[Any]) -> None:
        require_current(conn)
        prepare_session(conn, self._options.lease)
        ensure_at_start(conn, self._sleep)
        if not self._started and self._options.delivery is Guarantee.EXACTLY_ONCE:
            require_transactions(conn, self._settings, self._options.shard)
        held = self._join(conn)
        if held is None:
            return
        self._joined_at = held.since
        renewal = Renewal(
            held,
            lambda: self._options.connect("lease"),
            conn.info.backend_pid,
            stalled_after=self._options.stalled_after,
        )
        renewal.start()
        try:
            self._publish(conn, held, renewal)
        finally:
            renewal.stop()

    def _publish(self, conn: psycopg.Connection[Any], held: lease.Lease, renewal: Renewal) -> None:
        hands = Hands(conn, held, self._settings, self._options, self.vitals.counts)
        if not self._started:
            hands.replication.require_standby()
        upkeep = Upkeep(lambda: self._options.connect("upkeep"), sweep_every=self._options.sweep_every)
        session = Session(hands, upkeep, renewal)
        self._started, self._held_since = True, time.monotonic()
        upkeep.start()
        try:
            session.hand_over()
            if not held.lanes:
                log.info("standing by", owner=self._owner, epoch=held.epoch, shard=str(held.shard))
            self.vitals.begin(renewal)
            self._loop(session)
            left = session.finish(self._options.shutdown_timeout)
        except BaseException:
            self._unsettled = session.unsettled
            self.vitals.unrecorded += self._unsettled
            session.abandon()
            raise
        finally:
            self.vitals.end()
            self._is_draining = session.is_draining
            upkeep.stop()
            hands.close()
        self._unsettled = 0
        log.info("stopped", published=session.counts.published, unsettled=left)
        if left:
            raise UnsettledError(
                f"{left} messages were not acknowledged by Kafka before the relay stopped; "
                "the next relay publishes them again"
            )

    def _join(self, conn: psycopg.Connection[Any]) -> lease.Lease | None:
        """Join the relays of this database; None when this one was stopped meanwhile."""
        while not self._stopping:
            try:
                self.vitals.sign()
                return lease.join(
                    conn,
                    self._owner,
                    self._options.lease,
                    shard=self._options.shard,
                    delivery=self._options.delivery,
                    since=self._joined_at,
                    is_draining=self._is_draining,
                )
            except LanesLockedError as locked:
                locked.report()
        return None

    def _loop(self, session: Session) -> None:
        options = self._options
        polling = Backoff(options.poll_min, options.poll_max, factor=POLL_FACTOR)
        wait = polling.next()
        report_at = time.monotonic() + options.report_every
        published = session.counts.published
        while not self._stopping:
            try:
                found = session.run_once(wait)
            except KafkaUnavailableError as error:
                log.warning("Kafka is away", error=str(error))
                self.vitals.trouble = KAFKA_AWAY
                self._sleep(FIRST_PAUSE_S)
                continue
            now = time.monotonic()
            if self._failed_in_a_row < FAILING_SESSIONS or self._makes_progress(session.unsettled):
                self.vitals.trouble = None
            if found or now - session.counts.last_found < BUSY_S:
                polling.reset()
            rests = now - session.counts.last_found >= REST_AFTER_S
            longest = max(options.poll_max, min(REST_FACTOR * options.poll_max, REST_MOST_S))
            wait = polling.next(longest if rests else None)
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
        if not self._asks_kafka:
            return
        producer = new_producer(self._settings)
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while not self._stopping:
            try:
                producer.list_topics(timeout=2.0)
            except KafkaException as error:
                pause = backoff.next()
                log.warning("Kafka is away", error=readable(error), next_try_in_s=pause)
                self.vitals.trouble = KAFKA_AWAY
                self._sleep(pause)
            else:
                self._asks_kafka = False
                return

    def _sleep(self, seconds: float) -> None:
        """Sleep in short pieces, so that a signal is answered soon."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self.vitals.sign()
            time.sleep(min(left, 0.1))
