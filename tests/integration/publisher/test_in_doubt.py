"""A message whose acknowledgement was lost may be in Kafka: when it is refused afterwards, it does not become DEAD.

Each test lets Kafka take a message, loses the answer (with the producer, the relay or the broker), and then spoils the
row, so that the next try is refused before anything is handed over: it parks its key, or its lane stops at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg.errors import CheckViolation

from outbox_local.stack.api import Stack
from outbox_relay.publisher import lease, records
from outbox_relay.publisher.probe import PartitionProbe, PartitionState
from outbox_relay.publisher.session import Session
from tests.support import relay_stopping_lanes
from tests.support.kafka_records import read_topic
from tests.support.lanes import take
from tests.support.locks import holding
from tests.support.outbox_command import outbox, succeed
from tests.support.pausing import pause
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_stopping_lanes import NO_NAME
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

CHANGE = "UPDATE outbox.message SET state = %s, remark = 'by hand' WHERE message_id = %s"
SPOIL = "UPDATE outbox.message SET queue = 99 WHERE message_id = %s"
SPOIL_TOPIC = "UPDATE outbox.message SET topic = repeat('x', 250) WHERE message_id = %s"
STOPPED = """
    SELECT stopped_message::text, stopped_in_doubt FROM outbox.lane
    WHERE lane = %(lane)s AND stopped_error LIKE %(error)s
"""
PARKED = """
    SELECT w.message_id::text, w.in_doubt FROM outbox.parked_key k JOIN outbox.waiting w ON w.id = k.head
    WHERE k.lane = %(lane)s AND k.error LIKE %(error)s
"""
STATUS = "SELECT status FROM outbox.message_status WHERE message_id = %s"
LOSE_RELAY = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outbox relay%'
"""
LANE, OTHER, THIRD = 5, 2, 3
pytestmark = pytest.mark.usefixtures("may_not_describe_configs", "lanes_stop")


@pytest.fixture
def lanes_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes stop at messages without a topic that Kafka could have."""
    monkeypatch.setattr(records, "can_park", relay_stopping_lanes.can_park)


def status(conn: Connection, message_id: str) -> str:
    row = conn.execute(STATUS, [message_id]).fetchone()
    assert row is not None
    return str(row[0])


def stopped(conn: Connection, lane: int, code: str = "TOPIC_EXCEPTION") -> tuple[Any, ...] | None:
    """The message that the lane stopped at for this reason, and whether it is in doubt."""
    return conn.execute(STOPPED, {"lane": lane, "error": f"{code}:%"}).fetchone()


def parked(conn: Connection, lane: int, code: str = "QUEUE_OUT_OF_RANGE") -> tuple[Any, ...] | None:
    """The message of the lane that parked its key for this reason, and whether it is in doubt."""
    return conn.execute(PARKED, {"lane": lane, "error": f"{code}:%"}).fetchone()


FAULTS = pytest.mark.parametrize(("spoil", "failed"), [(SPOIL, parked), (SPOIL_TOPIC, stopped)])
"""A fault of the message's own, which parks its key, and the name of no topic, which stops its lane."""


def assert_only_skipped(conn: Connection, message_id: str) -> None:
    """Insist that nobody makes the message DEAD, and that it can be given up as what it is."""
    with pytest.raises(CheckViolation, match="it may be in Kafka already, because an earlier") as caught:
        conn.execute(CHANGE, ["DEAD", message_id])
    assert f"outbox message skip {message_id} --may-be-published" in str(caught.value.diag.message_hint)
    conn.execute(CHANGE, ["SKIPPED", message_id])
    assert status(conn, message_id) == "SKIPPED"


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap_servers, topic)]


class Scene:
    """One page: a message that Kafka refuses, and around it others that it takes. All topics are known to the relay."""

    def __init__(self, conn: Connection, session: Session, servers: str, make_topic: MakeTopic) -> None:
        self.conn, self.session, self.servers = conn, session, servers
        self.taken, self.refusing = (
            make_topic(partitions=1),
            make_topic(partitions=1, cleanup_policy="compact"),
        )
        (self.key,), (other,) = keys_of_lanes(conn, self.taken, LANE), keys_of_lanes(conn, self.taken, OTHER)
        first = [insert(conn, self.taken, self.key, b"first"), insert(conn, self.refusing, other, b"keyed")]
        turn_until(session, lambda: all(status(conn, one) == "PUBLISHED" for one in first), "both are known")
        with conn.transaction():
            self.lost = insert(conn, self.taken, self.key, b"lost")
            self.refused = insert(conn, self.refusing, None, b"no key", lane=OTHER)
            self.behind_refused = insert(conn, self.taken, other, b"behind it")
        turn_until(session, self._went_down, "the producer went down with all three")

    def _went_down(self) -> bool:
        """The refused message ended the producer. Nothing of the page is recorded, and nothing was read since."""
        return any(group.careful is not None for group in self.session._groups)

    def spoil(self, statement: str = SPOIL) -> None:
        """Make sure that Kafka has the message, and that the next try is refused before it is handed over."""
        wait_until(lambda: b"lost" in values(self.servers, self.taken), "Kafka has it")
        assert status(self.conn, self.lost) == "COMMITTED"
        self.conn.execute(statement.encode(), [self.lost])


Failed = Callable[..., tuple[Any, ...] | None]


@FAULTS
@pytest.mark.feature("S-38")
def test_what_went_down_with_a_producer_does_not_become_dead(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, spoil: str, failed: Failed
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        scene = Scene(conn, session, bootstrap_servers, make_topic)
        scene.spoil(spoil)
        turn_until(session, lambda: failed(conn, LANE) is not None, "its lane stops at it, or its key")
        assert failed(conn, LANE) == (scene.lost, True)
        behind = insert(conn, scene.taken, scene.key, b"behind")
        assert_only_skipped(conn, scene.lost)
        turn_until(session, lambda: status(conn, behind) == "PUBLISHED", "its lane goes on")
        # What a broker refused at every try is certain, although a message behind it went down with the producer.
        turn_until(session, lambda: parked(conn, OTHER, "INVALID_RECORD") is not None, "the other fails")
        assert parked(conn, OTHER, "INVALID_RECORD") == (scene.refused, False)
        with pytest.raises(CheckViolation, match="it is certain that Kafka does not have it"):
            conn.execute(CHANGE, ["SKIPPED", scene.refused])
        turn_until(
            session, lambda: status(conn, scene.behind_refused) == "PUBLISHED", "its lane goes on, too"
        )
        conn.execute(CHANGE, ["DEAD", scene.refused])
    assert values(bootstrap_servers, scene.taken).count(b"lost") == 1


def test_a_doubt_outlives_a_clean_stop(database: str, bootstrap_servers: str, make_topic: MakeTopic) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers) as session:
            scene = Scene(conn, session, bootstrap_servers, make_topic)
        scene.spoil()
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: parked(conn, LANE) is not None, "its key is parked")
            later = insert(
                conn, scene.taken, keys_of_lanes(conn, scene.taken, THIRD)[0], b"x", queue=98, lane=THIRD
            )
            turn_until(session, lambda: parked(conn, THIRD) is not None, "another is parked")
        # Without a relay, too.
        assert_only_skipped(conn, scene.lost)
        conn.execute(CHANGE, ["DEAD", later])


def test_a_retry_in_doubt_stays_announced_after_a_clean_stop(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """The row says that the lane stopped without doubt; the relay stops while it knows better."""
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers) as session:
            topic = make_topic(partitions=1)
            (key,) = keys_of_lanes(conn, topic, LANE)
            message_id = insert(conn, NO_NAME, key, b"x", lane=LANE)
            turn_until(session, lambda: stopped(conn, LANE) == (message_id, False), "its lane stops")
            (stop,) = session._stops.now().values()
            assert session._retries.announce(LANE)
            session._recorder.doubts.add_everything([LANE], stop.position)
        with pytest.raises(CheckViolation, match="has ended, and has not recorded whether it was published"):
            conn.execute(CHANGE, ["DEAD", message_id])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: stopped(conn, LANE) == (message_id, True), "it stops in doubt")


@FAULTS
@pytest.mark.feature("S-38")
def test_what_a_killed_relay_may_have_published_does_not_become_dead(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, spoil: str, failed: Failed
) -> None:
    topic = make_topic(partitions=1)
    one, another = ({"queue": n} if failed is parked else {} for n in (97, 98))
    elsewhere = topic if failed is parked else NO_NAME
    with connect(database) as conn:
        key, other, third = keys_of_lanes(conn, topic, LANE, OTHER, THIRD)
        with RelayProcess(database, bootstrap_servers, entry=[relay_stopping_lanes.__file__]) as relay:
            relay.wait_until_running()
            certain = insert(conn, elsewhere, third, b"x", lane=THIRD, **one)
            wait_until(lambda: failed(conn, THIRD) == (certain, False), "one fails before")
            # The barrier reads only; the record of what was published waits.
            with holding(database, "LOCK TABLE outbox.publication IN EXCLUSIVE MODE"):
                lost = insert(conn, topic, key, b"lost")
                wait_until(lambda: values(bootstrap_servers, topic) == [b"lost"], "Kafka has it")
                relay.kill()
                # Else its sessions would record it when the lock is gone: PostgreSQL has not noticed the death.
                conn.execute(LOSE_RELAY)
                wait_until(lambda: not conn.execute(LOSE_RELAY).fetchall(), "its sessions end")
        conn.execute(spoil.encode(), [lost])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: failed(conn, LANE) is not None, "it fails")
            assert_only_skipped(conn, lost)
            turn_until(session, lambda: failed(conn, THIRD) is not None, "the first still fails")
            conn.execute(CHANGE, ["DEAD", certain])
            since = insert(conn, elsewhere, other, b"x", lane=OTHER, **another)
            turn_until(session, lambda: failed(conn, OTHER) is not None, "a new one fails")
            conn.execute(CHANGE, ["DEAD", since])


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


def test_what_is_written_while_the_lanes_of_a_dead_relay_are_taken_is_in_doubt(
    database: str, conn: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the take is committed, a poll of the last owner finds the lanes its own, and may publish what it sees."""
    with connect(database) as first, connect(database) as second:
        dead, alive = take(first, "dead", 300, [LANE]), lease.join(second, "alive", 300)
        take(first, "stopped", 300, [OTHER]).release(first)
        conn.execute(
            "UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s' WHERE epoch = %s",
            [dead.epoch],
        )
        note = lease._note_failover
        positions: list[int] = []

        def written_meanwhile(*given: Any) -> None:
            note(*given)
            insert(conn, topic, "k", "1")
            positions.append(value(conn, "SELECT max(position) FROM outbox.message"))

        monkeypatch.setattr(lease, "_note_failover", written_meanwhile)
        taken = alive.take(second, [LANE, OTHER])
    assert taken.doubted[LANE] == positions[0]
    assert taken.doubted[OTHER] < positions[0], "its owner has given it back"


def test_a_refusal_after_a_lost_connection_proves_nothing(
    private_database: str, broker: SecondBroker
) -> None:
    """The message is on its way when the broker dies; librdkafka sends it again, and that is refused."""
    topic, servers = broker.make_topic(on=2), broker.bootstrap_servers
    with (
        connect(private_database) as conn,
        RelayThread(private_database, servers, ack_timeout=300.0) as relay,
    ):
        (key,) = keys_of_lanes(conn, topic, LANE)
        insert(conn, topic, key, b"keyed")
        wait_published(conn)
        process = broker._process
        assert process is not None
        pause(process.pid)
        lost = insert(conn, topic, None, b"no key", lane=LANE)
        wait_until(lambda: relay.session is not None and relay.session.unsettled == 1, "it is on its way")
        broker.kill()
        admin = AdminClient({"bootstrap.servers": servers})
        entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(15)
        broker.start()
        wait_until(lambda: parked(conn, LANE, "INVALID_RECORD") is not None, "the second one is refused")
        assert not relay.find("lane stopped"), "it was not given up as unavailable before"
        assert_only_skipped(conn, lost)


def test_what_an_unavailable_partition_may_have_taken_stays_in_doubt(
    private_database: str, broker: SecondBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the message behind the one at which the lane stopped: both were in flight. The leader seems silent."""
    monkeypatch.setattr(PartitionProbe, "_state", lambda *_: PartitionState("it does not acknowledge"))
    topic = broker.make_topic(on=1, also_on=[2], min_insync_replicas="2")
    servers = broker.bootstrap_servers
    with connect(private_database) as conn:
        (key,) = keys_of_lanes(conn, topic, LANE)
        with RelayThread(private_database, servers, ack_timeout=1.0) as relay:
            insert(conn, topic, key, b"0")
            wait_published(conn)
            broker.kill()
            with conn.transaction():
                first, second = insert(conn, topic, key, b"1"), insert(conn, topic, key, b"2")
            relay.wait_for("lane stopped", lane=LANE)
        assert stopped(conn, LANE, "PARTITION_UNAVAILABLE") == (None, True)
        conn.execute(SPOIL, [first])
        conn.execute(SPOIL, [second])
        for message_id in (first, second):
            with relay_session(private_database, servers) as session:
                turn_until(session, partial(_is_head, conn, message_id), "it fails")
                assert parked(conn, LANE) == (message_id, True)
                assert_only_skipped(conn, message_id)


def _is_head(conn: Connection, message_id: str) -> bool:
    found = parked(conn, LANE)
    return found is not None and found[0] == message_id


def test_a_message_in_doubt_is_given_up_by_command(database: str, conn: Connection) -> None:
    first, second = (insert(conn, "orders", "k", b"x") for _ in range(2))
    stop = (
        "UPDATE outbox.lane l SET stopped_error = 'MESSAGE_TOO_LARGE: x', stopped_message = m.message_id, "
        "stopped_in_doubt = %s, stopped_at = now() FROM outbox.message m WHERE m.message_id = %s AND m.lane = l.lane"
    )
    conn.execute(stop, [True, first])
    for action in ("dead", "skip"):
        ran = outbox("holds", action, first, "--reason", "why", OUTBOX_DSN=database)
        assert (ran.code, "it may be in Kafka already" in ran.err) == (1, True), ran.err
        assert f"outbox holds skip {first} --may-be-published --reason TEXT" in ran.err
    given_up = ["holds", "skip", first, "--may-be-published", "--reason", "sent again"]
    assert "if Kafka has it already, it stays there" in succeed(*given_up, OUTBOX_DSN=database).out
    again = succeed(*given_up, "--json", OUTBOX_DSN=database).json
    assert (again["result"], again["state"], again["reason"]) == ("already", "SKIPPED", "sent again")
    events = "SELECT from_state, to_state, reason FROM outbox.event"
    assert conn.execute(events).fetchall() == [("COMMITTED", "SKIPPED", "sent again")]
    conn.execute(stop, [False, second])
    ran = outbox(*given_up[:2], second, *given_up[3:], OUTBOX_DSN=database)
    assert (ran.code, "it is certain that Kafka does not have it" in ran.err) == (1, True), ran.err
