"""A relay that has lost Kafka, and only Kafka, leaves its lanes to one that has it.

The relays of these tests have a broker each, so that one of them can be without. What happens between two lines: see
`outbox_relay/publisher/leading.py`. It dies instead of leaving: its lanes are free at once. Kafka replies before
it leaves: it keeps them. A standby asks Kafka while the leader has none, and takes it for away until a broker replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support import relay_leaving_soon
from tests.support.databases import with_database
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import Connection, connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.topics import Topics
from tests.support.waiting import wait_until

SOON = (str(Path(relay_leaving_soon.__file__)),)
LEADER = "SELECT array_agg(DISTINCT owner) FROM outbox.lane"
LACKING = "SELECT count(*) FROM outbox.lease WHERE lacks_kafka"


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    with connect(private_database) as conn:
        yield conn


@pytest.fixture
def topics(private_stack: Stack, make_topic: MakeTopic) -> list[str]:
    """Two topics that both brokers have."""
    names = [make_topic(), make_topic()]
    for name in names:
        Topics(private_stack.bootstrap_servers).make_named(name, 4)
    return names


def wait_for_leader(conn: Connection, owner: str) -> None:
    wait_until(lambda: conn.execute(LEADER).fetchone() == ([owner],), f"{owner} leads", seconds=60)


@pytest.mark.parametrize("before", ["on the wire", pytest.param("unread topic", marks=pytest.mark.long)])
def test_a_relay_without_kafka_leaves_its_lanes_to_one_that_has_it(
    private_stack: Stack, bootstrap_servers: str, topics: list[str], conn: Connection, before: str
) -> None:
    """Whether its messages are on the wire, or it has not even read their topic."""
    topic, other = topics
    dsn = with_database(private_stack.dsn, conn.info.dbname)
    with (
        RelayProcess(dsn, private_stack.bootstrap_servers, entry=SOON).wait_until_running() as lonely,
        RelayProcess(dsn, bootstrap_servers, entry=SOON) as healthy,
    ):
        owner = healthy.wait_for("standing by")["owner"]
        insert_numbered(conn, topic if before == "on the wire" else other, 200)
        wait_published(conn)
        private_stack.kill_kafka()
        try:
            insert_numbered(conn, topic, 200, start=200)
            wait_for_leader(conn, owner)
            wait_published(conn)
            assert "no broker replied to this relay" in lonely.wait_for("lanes lost, joining again")["error"]
            insert_numbered(conn, topic, 200, start=400)
            wait_published(conn)
        finally:
            private_stack.start_kafka()
        lonely.wait_for("standing by")
        insert_numbered(conn, topic, 200, start=600)
        wait_published(conn)
        wait_for_leader(conn, owner)
        assert healthy.count("lanes lost, joining again") == 0
        lonely.stop()
        healthy.stop()
    found = [
        record
        for servers in (private_stack.bootstrap_servers, bootstrap_servers)
        for name in (topic, other)
        for record in read_topic(servers, name)
    ]
    assert {record.value for record in found} == {f"{key}:{n}".encode() for key, n in numbered(800)}


@pytest.mark.long
def test_no_lane_moves_where_kafka_is_away_from_all_relays(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> None:
    servers = private_stack.bootstrap_servers
    with (
        RelayProcess(private_database, servers, entry=SOON).wait_until_running() as first,
        RelayProcess(private_database, servers, entry=SOON) as second,
    ):
        second.wait_for("standing by")
        insert_numbered(conn, private_topic, 200)
        wait_published(conn)
        private_stack.kill_kafka()
        try:
            insert_numbered(conn, private_topic, 200, start=200)
            wait_until(lambda: conn.execute(LACKING).fetchone() == (2,), "both state that they lack Kafka")
            listed = succeed("relay", "ls", "--json", OUTBOX_DSN=private_database).json
            assert [each["condition"] for each in listed] == ["without Kafka"] * 2
            for relay in (first, second):  # 15 s after it began to ask; it would have left after eight
                relay.wait_for("Kafka is away", next_report_in_s=lambda pause: pause >= 16)
        finally:
            private_stack.start_kafka()
        wait_published(conn)
        wait_until(lambda: conn.execute(LACKING).fetchone() == (0,), "both state that they have it again")
        for relay in (first, second):
            assert relay.count("lanes lost, joining again") == 0
            relay.stop()
    found = compare(read_topic(servers, private_topic), numbered(400))
    assert not found.broken
    assert found.duplicate_records == 0
