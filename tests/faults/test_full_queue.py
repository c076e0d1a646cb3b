"""Kafka takes nothing for a while and librdkafka's local queue is full, so that a page is handed over in part.

What was handed over is on its way in the order of its positions, and the rest of the page is handed over behind it in a
later turn. A relay that dies in between has recorded nothing of the page: its successor publishes all of it, and the
records that the dead one left on the wire are the same messages in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
ROOM = 50
"""Messages in the local queue."""
FIRST, PAGE, LATER = 20, 300, 100


def handed_over(relay: RelayThread) -> int:
    """Messages that were handed to librdkafka by turns that have ended."""
    return relay.session.counts.published if relay.session is not None else 0


def test_a_page_that_is_handed_over_in_part_is_published_once_and_in_order(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    servers = private_stack.bootstrap_servers
    options = {"kafka": {"queue.buffering.max.messages": str(ROOM)}, "ack_timeout": 300.0}
    with connect(private_database) as conn, RelayThread(private_database, servers, **options) as relay:
        insert_numbered(conn, private_topic, FIRST)
        wait_published(conn)
        private_stack.pause_kafka()
        try:
            insert_numbered(conn, private_topic, PAGE, start=FIRST)
            wait_until(lambda: handed_over(relay) == FIRST + ROOM, "a page is handed over in part")
            insert_numbered(conn, private_topic, LATER, start=FIRST + PAGE)
        finally:
            private_stack.resume_kafka()
        wait_published(conn)
        assert not relay.find("delivery failed")
    assert relay.error is None
    found = compare(read_topic(servers, private_topic), numbered(FIRST + PAGE + LATER))
    assert not found.broken
    assert found.duplicate_records == 0


@pytest.mark.parametrize(
    ("step", "when", "number"),
    [
        ("publisher.hands.wires:Wires._waits_for_room", "before", 1),
        ("publisher.hands.wires:Wires._waits_for_room", "after", 1),
        ("publisher.hands.wires:Wires._waits_for_room", "after", 2),
    ],
    ids=["before it waits for room", "while the page ends early", "with the rest put off"],
)
def test_a_relay_that_dies_with_a_full_queue_leaves_all_to_its_successor(
    private_stack: Stack, private_database: str, private_topic: str, *, step: str, when: str, number: int
) -> None:
    servers = private_stack.bootstrap_servers
    options = ("--lease", "1", "--kafka-config", f"queue.buffering.max.messages={ROOM}")
    with connect(private_database) as conn:
        entry = (ENTRY, step, when, str(number))
        with RelayProcess(private_database, servers, *options, entry=entry) as relay:
            insert_numbered(conn, private_topic, FIRST)
            wait_published(conn)
            private_stack.pause_kafka()
            try:
                insert_numbered(conn, private_topic, PAGE, start=FIRST)
                relay.wait_until_it_kills_itself()
            finally:
                private_stack.resume_kafka()
        recorded = conn.execute(
            "SELECT sum(pg_catalog.cardinality(positions))::int FROM outbox.publication"
        ).fetchone()
        assert recorded == (FIRST,), "nothing of the page"
        insert_numbered(conn, private_topic, LATER, start=FIRST + PAGE)
        with RelayProcess(private_database, servers, *options) as relay:
            wait_published(conn)
            relay.stop()
    found = compare(read_topic(servers, private_topic), numbered(FIRST + PAGE + LATER))
    assert not found.broken
    assert found.duplicate_records <= ROOM
