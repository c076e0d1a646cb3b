"""A message whose acknowledgement was lost may be in Kafka: when it is refused afterwards, it does not become DEAD.

Each test lets Kafka take a message, loses the answer (with the relay or the broker), and then spoils the row, so that
the next try is refused before anything is handed over, and parks its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg.errors import CheckViolation

from outbox_local.stack.api import Stack
from outbox_relay.publisher import lease
from outbox_relay.publisher.topics import PartitionProbe, PartitionState
from tests.support.kafka_records import read_topic
from tests.support.lanes import take
from tests.support.locks import holding
from tests.support.outbox_command import outbox, succeed
from tests.support.pausing import pause
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

CHANGE = "UPDATE outbox.message SET state = %s, remark = 'by hand' WHERE message_id = %s"
SPOIL = "UPDATE outbox.message SET queue = 99 WHERE message_id = %s"
IN_DOUBT = "SELECT count(*) FROM outbox.waiting WHERE in_doubt"
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
pytestmark = pytest.mark.usefixtures("may_not_describe_configs")


def status(conn: Connection, message_id: str) -> str:
    row = conn.execute(STATUS, [message_id]).fetchone()
    assert row is not None
    return str(row[0])


def parked(conn: Connection, lane: int, code: str = "QUEUE_OUT_OF_RANGE") -> tuple[Any, ...] | None:
    """The message of the lane that parked its key for this reason, and whether it is in doubt."""
    return conn.execute(PARKED, {"lane": lane, "error": f"{code}:%"}).fetchone()


def assert_only_skipped(conn: Connection, message_id: str) -> None:
    """Insist that nobody makes the message DEAD, and that it can be given up as what it is."""
    with pytest.raises(CheckViolation, match="it may be in Kafka already, because an earlier") as caught:
        conn.execute(CHANGE, ["DEAD", message_id])
    assert f"outbox message skip {message_id} --may-be-published" in str(caught.value.diag.message_hint)
    conn.execute(CHANGE, ["SKIPPED", message_id])
    assert status(conn, message_id) == "SKIPPED"


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap_servers, topic)]


@pytest.mark.feature("S-38")
def test_what_a_killed_relay_may_have_published_does_not_become_dead(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    with connect(database) as conn:
        key, other, third = keys_of_lanes(conn, topic, LANE, OTHER, THIRD)
        with RelayProcess(database, bootstrap_servers) as relay:
            relay.wait_until_running()
            certain = insert(conn, topic, third, b"x", lane=THIRD, queue=97)
            wait_until(lambda: parked(conn, THIRD) == (certain, False), "one fails before")
            # The barrier reads only; the record of what was published waits.
            with holding(database, "LOCK TABLE outbox.publication IN EXCLUSIVE MODE"):
                lost = insert(conn, topic, key, b"lost")
                wait_until(lambda: values(bootstrap_servers, topic) == [b"lost"], "Kafka has it")
                relay.kill()
                # Else its sessions would record it when the lock is gone: PostgreSQL has not noticed the death.
                conn.execute(LOSE_RELAY)
                wait_until(lambda: not conn.execute(LOSE_RELAY).fetchall(), "its sessions end")
        conn.execute(SPOIL, [lost])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: parked(conn, LANE) is not None, "it fails")
            assert_only_skipped(conn, lost)
            turn_until(session, lambda: parked(conn, THIRD) is not None, "the first still fails")
            conn.execute(CHANGE, ["DEAD", certain])
            since = insert(conn, topic, other, b"x", lane=OTHER, queue=98)
            turn_until(session, lambda: parked(conn, OTHER) is not None, "a new one fails")
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
    """Also the message behind the first: both were in flight. The leader seems silent."""
    monkeypatch.setattr(PartitionProbe, "_state", lambda *_: PartitionState("it does not acknowledge"))
    topic = broker.make_topic(on=1, also_on=[2], min_insync_replicas="2")
    servers = broker.bootstrap_servers
    with connect(private_database) as conn:
        (key,) = keys_of_lanes(conn, topic, LANE)
        with RelayThread(private_database, servers, ack_timeout=1.0):
            insert(conn, topic, key, b"0")
            wait_published(conn)
            broker.kill()
            with conn.transaction():
                first, second = insert(conn, topic, key, b"1"), insert(conn, topic, key, b"2")
            wait_until(lambda: conn.execute(IN_DOUBT).fetchone() == (2,), "both wait, in doubt")
        conn.execute(SPOIL, [first])
        conn.execute(SPOIL, [second])
        broker.start()
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
