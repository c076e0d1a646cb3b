"""Old partitions: what fails in one that is full is published later, however it came to be COMMITTED again."""

from __future__ import annotations

from datetime import timedelta

from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.publisher.upkeep import Recorded, Upkeep
from tests.support.bare_reader import narrow_partitions
from tests.support.held_keys import hold_key, write_key
from tests.support.kafka_records import read_topic
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import (
    Connection,
    clock,
    connect,
    decide,
    insert,
    insert_numbered,
    wait_published,
)
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.topics import Topics
from tests.support.waiting import wait_until

FAILED = "SELECT reason FROM outbox.waiting w JOIN outbox.message m USING (id) WHERE m.message_id = %s"
RETRIED = (
    "UPDATE outbox.message SET xid = pg_current_xact_id(), position = nextval('outbox.position') WHERE id = 1"
)
BACKLOG = 4_000


def has_left(relay: RelayThread, conn: Connection, topic: str, lower: int) -> bool:
    """Let the relay read on, and return whether it names the partition from this id on no more."""
    insert(conn, topic, "k", b"traffic")
    table = f"message_p{lower:015}"
    return any(table in seen["tables"] for seen in relay.find("partitions done"))


def test_what_fails_while_its_partition_leaves_is_published_at_its_retry(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic, other = Topics.new_name(), make_topic(partitions=1)
    given = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    with connect(database) as conn:
        narrow_partitions(conn, count=8)
    with connect(database) as conn, RelayThread(database, bootstrap_servers, page=10) as relay:
        # Queue 1 does not exist in the pinned topic; nothing is known of the topic yet, so the table takes the row.
        half = insert(conn, topic, None, b"half", queue=1, state="UNKNOWN", producer_group="g")
        Topics(bootstrap_servers).make_named(topic, 2)
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 1)", [topic])
        conn.execute("SELECT setval('outbox.position', 1000)")
        bystander = insert(conn, other, "k", b"k:1", state="UNKNOWN", producer_group="g")
        conn.execute("SELECT setval('outbox.position', 3000)")
        wait_until(lambda: has_left(relay, conn, other, 2001), "an empty partition has left")
        insert_numbered(
            conn, topic, BACKLOG
        )  # its topic is busy for a second or two, so the message is unread
        assert decide(conn, half, "COMMITTED") == 1
        wait_until(lambda: conn.execute(FAILED, [half]).fetchone() == ("failed",), "the message has failed")
        # The next full partition leaves: so the relay has had its time to leave out the first one as well.
        assert decide(conn, bystander, "COMMITTED") == 1
        wait_until(lambda: has_left(relay, conn, other, 1001), "the next partition has left")
        succeed("holds", "dead", half, "--reason", "a test", **given)
        succeed("topic", "repartition", topic, "--to", "2", **given)
        succeed("holds", "release", half, "--reason", "the queue is there", **given)
        later = insert(conn, topic, None, b"later", queue=1)
        wait_published(conn)
        found = [record.message_id for record in read_topic(bootstrap_servers, topic)]
        assert (found.count(half), found.count(later)) == (1, 1)


def test_a_sweep_finds_what_is_committed_in_a_partition_that_left(database: str) -> None:
    upkeep = Upkeep(lambda: connect(database))
    with connect(database) as conn:
        narrow_partitions(conn)
        insert(conn, "t", "k", b"retried when no poll names its partition")
        conn.execute("SELECT setval('outbox.position', 1000)")
        insert(conn, "t", "k", b"of a live partition")
        own_lanes(conn)
        for batch, position in enumerate(positions(conn)):
            record(conn, [position], seen=snapshot(conn), batch=batch)
        assert sweep(upkeep, conn) == []
        conn.execute(RETRIED)
        assert sweep(upkeep, conn) == [1]


def test_a_sweep_passes_over_what_waits(database: str) -> None:
    """A new place would let a held message overtake those in front of it, and a delayed one come early."""
    upkeep = Upkeep(lambda: connect(database))
    with connect(database) as conn:
        narrow_partitions(conn)
        conn.execute("SELECT setval('outbox.position', 1000)")
        own_lanes(conn)
        head = write_key(conn, "t", "k", 3)
        hold_key(conn, head)
        insert(conn, "t", "other", b"later", deliver_at=clock(conn) + timedelta(hours=1))
        lost = write_key(conn, "t", "lost", 1)
        assert sweep(upkeep, conn) == [lost]


def sweep(upkeep: Upkeep, conn: Connection) -> list[int]:
    """Sweep where the first partition has left, and all that is visible counts as published."""
    conn.execute("SELECT pg_current_xact_id()")
    seen = snapshot(conn)
    upkeep.mark(Recorded(Snapshot.parse(seen), frozenset(range(8)), 1001))
    upkeep.sweep(conn)
    return upkeep.take_lost(range(8))
