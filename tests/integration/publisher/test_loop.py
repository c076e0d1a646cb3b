"""The publishing loop on real servers: what one topic or key does, and what others notice of it.

Every test of trouble has a topic that has none: all of its messages are published meanwhile, once and in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.kafka_records import compare, read_topic
from tests.support.misread_limits import misread_limits
from tests.support.moved_keys import wrong_of_moved
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.topics import Topics
from tests.support.waiting import wait_until

HELD = "SELECT count(*) FROM outbox.waiting"
LEFT = "SELECT (SELECT count(*) FROM outbox.waiting) + (SELECT count(*) FROM outbox.parked_key)"
RELEASE = "UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE draining_at IS NULL"
OF_TOPIC = """
    SELECT count(*) FROM outbox.message_status s JOIN outbox.message m USING (id)
    WHERE m.topic = %s AND s.published_at IS NOT NULL
"""


@pytest.fixture
def relay(database: str, bootstrap_servers: str) -> Iterator[RelayThread]:
    with RelayThread(database, bootstrap_servers, page=200, poll_max=0.02) as relay:
        yield relay


def wait_for_topic(conn: Connection, topic: str, count: int) -> None:
    wait_until(
        lambda: conn.execute(OF_TOPIC, [topic]).fetchone() == (count,), f"{count} of {topic} are published"
    )


def check(bootstrap_servers: str, topic: str, count: int, *, repeated: int = 0) -> None:
    """Check that a topic has its messages in order, none missing, and so many records twice at most."""
    found = compare(read_topic(bootstrap_servers, topic), numbered(count))
    assert not found.broken
    assert found.duplicate_records <= repeated


def poison(conn: Connection, topic: str, key: str, version: int) -> None:
    """Write a message larger than its topic takes."""
    insert(conn, topic, key, f"{key}:{version}", headers='{"much": "%s"}' % ("x" * 20_000), lane=3)


def limit(conn: Connection, topic: str, size: int) -> None:
    conn.execute(
        "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 4, %s) "
        "ON CONFLICT (name) DO UPDATE SET max_message_bytes = excluded.max_message_bytes",
        [topic, size],
    )


def test_a_backlog_of_many_topics_is_published_in_order(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    """More topics than are read apart: the rest of them is one list, and what comes meanwhile follows it."""
    topics = [make_topic() for _ in range(14)]
    for topic in topics:
        insert_numbered(conn, topic, 400)
    with RelayThread(database, bootstrap_servers, page=200):
        for topic in topics:
            insert_numbered(conn, topic, 50, start=400)
        wait_published(conn)
        insert_numbered(conn, topics[0], 50, start=450)
        wait_published(conn)
    check(bootstrap_servers, topics[0], 500)
    for topic in topics[1:]:
        check(bootstrap_servers, topic, 450)


def test_a_flood_of_one_topic_lets_another_through(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    flooded, other = make_topic(), make_topic()
    insert_numbered(conn, other, 1)
    wait_for_topic(conn, other, 1)
    insert_numbered(conn, flooded, 30_000)
    began = time.monotonic()
    insert_numbered(conn, other, 1, start=1)
    wait_for_topic(conn, other, 2)
    waited = time.monotonic() - began
    seen = conn.execute(OF_TOPIC, [flooded]).fetchone()
    assert waited < 20, "its message waits for pages, not for the flood"
    assert seen != (30_000,), "the flood went on meanwhile"
    wait_published(conn)
    check(bootstrap_servers, flooded, 30_000)
    check(bootstrap_servers, other, 2)


def test_messages_of_more_bytes_than_a_page_are_all_published(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    """They are fewer than a page has rows. Those behind the cut are neither lost nor late for the sweep."""
    large, other = make_topic(partitions=1), make_topic(partitions=1)
    with conn.transaction():
        for version in range(24):
            much = '{"much": "%s"}' % ("x" * 900_000)
            insert(conn, large if version % 3 else other, "k", f"k:{version}", headers=much)
    wait_published(conn)
    for topic, third in ((large, False), (other, True)):
        expected = [("k", version) for version in range(24) if (version % 3 == 0) is third]
        found = compare(read_topic(bootstrap_servers, topic), expected)
        assert not found.broken
        assert found.duplicate_records == 0
    assert not relay.find("messages were recorded as published and are not; publishing them now")


def test_a_message_that_cannot_be_sent_holds_its_key_until_it_is_released(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    sick, well = make_topic(), make_topic()
    limit(conn, sick, 10_000)
    insert_numbered(conn, sick, 100)
    wait_for_topic(conn, sick, 100)
    poison(conn, sick, "k7", 107)
    relay.wait_for("key parked")
    insert_numbered(conn, sick, 100, start=108)
    insert_numbered(conn, well, 100)
    wait_for_topic(conn, well, 100)
    wait_until(lambda: conn.execute(HELD).fetchone() == (3,), "its key is held: one fails, and two wait")
    limit(conn, sick, 1_000_000)
    conn.execute(RELEASE)
    wait_until(lambda: conn.execute(LEFT).fetchone() == (0,), "nothing is held")
    insert_numbered(conn, sick, 50, start=208)
    wait_published(conn)
    check(bootstrap_servers, well, 100)
    found = compare(
        read_topic(bootstrap_servers, sick), [*numbered(100), ("k7", 107), *numbered(150, start=108)]
    )
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_refusal_costs_its_own_topic(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay takes a topic's limit for a higher one than it is. The first refusal ends a producer, no other does."""
    misread_limits(monkeypatch)
    sick, well = make_topic(max_message_bytes="10000"), make_topic()
    sent = 0
    with RelayThread(database, bootstrap_servers):
        for version in range(12):
            poison(conn, sick, f"p{version}", 0)
            insert_numbered(conn, well, 50, start=sent)
            sent += 50
            wait_for_topic(conn, well, sent)
        wait_until(lambda: conn.execute(HELD).fetchone() == (12,), "each is held by itself")
    check(bootstrap_servers, well, sent, repeated=50)


def test_a_lane_row_that_somebody_holds_stops_nothing_but_new_holds(
    database: str, relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    sick, well = make_topic(), make_topic()
    limit(conn, sick, 10_000)
    insert_numbered(conn, well, 1)
    wait_for_topic(conn, well, 1)
    with connect(database) as other, other.transaction():
        other.execute("SELECT FROM outbox.lane FOR UPDATE")
        poison(conn, sick, "k7", 0)
        relay.wait_for("lane row locked")
        insert_numbered(conn, well, 100, start=1)
        wait_for_topic(conn, well, 101)
        assert conn.execute(HELD).fetchone() == (0,)
    wait_until(lambda: conn.execute(HELD).fetchone() == (1,), "it is held")
    check(bootstrap_servers, well, 101)


def test_a_paused_topic_waits_and_goes_on_in_order(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    paused, well = make_topic(), make_topic()
    insert_numbered(conn, paused, 50)
    wait_for_topic(conn, paused, 50)
    conn.execute(
        "UPDATE outbox.topic SET paused_at = clock_timestamp(), paused_by = 'test', pause_reason = 'r' WHERE name = %s",
        [paused],
    )
    relay.wait_for("topic is held", topic=paused)
    insert_numbered(conn, paused, 60, start=50)
    insert_numbered(conn, well, 60)
    wait_for_topic(conn, well, 60)
    wait_until(lambda: conn.execute(HELD).fetchone() == (60,), "all of the paused topic waits")
    conn.execute(
        "UPDATE outbox.topic SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE name = %s",
        [paused],
    )
    wait_until(lambda: conn.execute(LEFT).fetchone() == (0,), "nothing is held")
    insert_numbered(conn, paused, 10, start=110)
    wait_published(conn)
    check(bootstrap_servers, paused, 120)
    check(bootstrap_servers, well, 60)


def test_a_topic_that_kafka_lacks_waits_until_it_is_made(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    well = make_topic()
    missing = f"{well}-later"
    insert_numbered(conn, missing, 60)
    relay.wait_for("topic is held", topic=missing)
    insert_numbered(conn, well, 60)
    wait_for_topic(conn, well, 60)
    Topics(bootstrap_servers).make_named(missing, 2)
    conn.execute(RELEASE)
    wait_until(lambda: conn.execute(LEFT).fetchone() == (0,), "nothing is held")
    wait_published(conn)
    check(bootstrap_servers, missing, 60)
    check(bootstrap_servers, well, 60)


def test_keys_move_to_another_partition_count_in_order(
    relay: RelayThread, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    moved = make_topic(message_timestamp_type="LogAppendTime")
    conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 2)", [moved])
    for turn in range(10):
        insert_numbered(conn, moved, 200, start=200 * turn)
        if turn == 4:
            conn.execute("UPDATE outbox.topic SET partitions = 4 WHERE name = %s", [moved])
    wait_published(conn)
    wait_until(
        lambda: len({r.partition for r in read_topic(bootstrap_servers, moved)}) == 4 or more(conn, moved),
        "4",
    )
    committed = numbered(2_000 + sum(EXTRA))
    assert wrong_of_moved(read_topic(bootstrap_servers, moved), committed, 2, 4) == ""


EXTRA: list[int] = []


def more(conn: Connection, topic: str) -> bool:
    """Write more messages until the change is used."""
    insert_numbered(conn, topic, 100, start=2_000 + sum(EXTRA))
    EXTRA.append(100)
    wait_published(conn)
    return False
