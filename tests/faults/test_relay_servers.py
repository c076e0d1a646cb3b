"""The relay beside servers that are not there yet, go away, die and come back."""

from __future__ import annotations

import pytest

from outbox_local.stack.api import Stack
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def test_it_starts_before_postgresql_and_kafka_do(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    with connect(private_database) as conn:
        insert_numbered(conn, private_topic, 50)
    private_stack.stop_kafka()
    private_stack.stop_postgres()
    with RelayProcess(private_database, private_stack.bootstrap_servers) as relay:
        relay.wait_for("Kafka is away")
        private_stack.start_kafka()
        relay.wait_for("PostgreSQL is away")
        private_stack.start_postgres()
        with connect(private_database) as conn:
            wait_published(conn)
        relay.stop()
    records = read_topic(private_stack.bootstrap_servers, private_topic)
    assert not compare(records, numbered(50)).broken


@pytest.mark.feature("S-38")
@pytest.mark.parametrize("server", ["postgres", "kafka"])
def test_it_outlives_a_server_that_is_killed_under_load(
    private_stack: Stack, private_database: str, private_topic: str, server: str
) -> None:
    with (
        Writers(private_database, private_topic, seed=21) as writers,
        RelayProcess(private_database, private_stack.bootstrap_servers) as relay,
    ):
        for _ in range(2 if server == "postgres" else 1):
            relay.wait_until_running()
            writers.wait_for(100)
            if server == "postgres":
                private_stack.kill_postgres()
                private_stack.start_postgres()
            else:
                private_stack.kill_kafka()
                writers.wait_for(100)
                private_stack.start_kafka()
        writers.wait_for(100)
        writers.stop()
        with connect(private_database) as conn:
            wait_published(conn)
        assert "Traceback" not in relay.output()
        relay.stop()
        found = compare(read_topic(private_stack.bootstrap_servers, private_topic), writers.committed())
    assert not found.broken


@pytest.mark.parametrize("bodies", [b"small", b"x" * 900_000], ids=["few bytes", "a full queue"])
def test_it_stops_in_time_while_kafka_does_not_answer_and_says_what_is_open(
    private_stack: Stack, private_database: str, make_private_topic: MakeTopic, bodies: bytes
) -> None:
    topic = make_private_topic(partitions=1)
    with (
        connect(private_database) as conn,
        RelayProcess(
            private_database, private_stack.bootstrap_servers, "--shutdown-timeout", "0.5", "--lease", "2"
        ) as relay,
    ):
        insert(conn, topic, "k", b"first")
        wait_published(conn)
        private_stack.pause_kafka()
        for _ in range(150):
            insert(conn, topic, "k", bodies)
        before = conn.execute("SELECT max(leased_until) FROM outbox.lease").fetchone()
        assert before is not None
        renewed = "SELECT max(leased_until) > %s + interval '1 second' FROM outbox.lease"
        wait_until(lambda: conn.execute(renewed, [before[0]]).fetchone() == (True,), "the lease is renewed")
        relay.terminate()
        assert relay.wait(20) == 1
        assert "messages were not acknowledged by Kafka" in relay.output()
        assert "Traceback" not in relay.output()
        private_stack.resume_kafka()
        with RelayProcess(private_database, private_stack.bootstrap_servers) as second:
            wait_published(conn)
            second.stop()
    values = [record.value for record in read_topic(private_stack.bootstrap_servers, topic)]
    assert values[0] == b"first"
    assert len(values) >= 151
