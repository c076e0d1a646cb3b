"""Exactly-once delivery where a database has a copy, an older backup is restored, or its lanes are divided anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox_relay.publisher.core.values import Proof
from outbox_relay.publisher.hands.transactional import TransactionalWires
from outbox_relay.publisher.shard import Guarantee
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import (
    Connection,
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    wait_published,
)
from tests.support.relay_process import RelayProcess
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

ENTRY = str(Path(__file__).parents[2] / "support/dying_relay.py")
EXACTLY = ("--delivery", "exactly-once", "--lease", "2")
AT_LEAST = ("--delivery", "at-least-once", "--lease", "2")
NAMES = "SELECT name FROM outbox.exactly_once ORDER BY shard"
TWICE = "SELECT position FROM outbox.publication, unnest(positions) position GROUP BY 1 HAVING count(*) > 1"
WAITS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
BEFORE = """
    DELETE FROM outbox.exactly_once; DELETE FROM outbox.intent; DELETE FROM outbox.lease;
    UPDATE outbox.lane SET epoch = 0, owner = NULL, mode = 'at-least-once';
    ALTER SEQUENCE outbox.epoch RESTART WITH 1
"""
"""The rows as a backup has them that was made before a relay delivered exactly once."""


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def copied(database: str, make_database: MakeDatabase) -> str:
    """Copy a database to which nobody is connected within its server, and return the copy's DSN."""
    copy = make_database(migrated=False)
    names = [conninfo_to_dict(dsn)["dbname"] for dsn in (copy, database)]
    with psycopg.connect(make_conninfo(copy, dbname="postgres"), autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{names[0]}"')
        admin.execute('CREATE DATABASE "{}" TEMPLATE "{}"'.format(*names))
    return copy


def run(database: str, servers: str, *options: str) -> None:
    """Let a relay publish everything, and stop."""
    with connect(database) as conn, RelayProcess(database, servers, *options) as relay:
        relay.wait_for("lanes taken")
        wait_published(conn)
        relay.stop()


def check_once(servers: str, topic: str, committed: list[tuple[str, int]]) -> None:
    found = compare(read_topic(servers, topic), committed)
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_copy_in_the_same_server_does_not_go_on_with_the_ids_of_its_original(
    database: str, bootstrap_servers: str, make_database: MakeDatabase, make_topic: MakeTopic
) -> None:
    """The original is the bystander: its next batch has to be proven."""
    topic, of_copy = make_topic(partitions=1), make_topic(partitions=1)
    with connect(database) as conn:
        insert_numbered(conn, topic, 10)
    run(database, bootstrap_servers, *EXACTLY)
    copy = copied(database, make_database)
    with connect(copy) as there:
        insert_numbered(there, of_copy, 10)
    run(copy, bootstrap_servers, *EXACTLY)
    with connect(database) as conn, connect(copy) as there:
        insert_numbered(conn, topic, 10, start=10)
        run(database, bootstrap_servers, *EXACTLY)
        assert conn.execute(NAMES).fetchall() != there.execute(NAMES).fetchall()
    check_once(bootstrap_servers, topic, numbered(20))
    check_once(bootstrap_servers, of_copy, numbered(10))


def test_a_restored_backup_takes_no_group_that_was_left_for_proof(
    database: str, bootstrap_servers: str, make_database: MakeDatabase, make_topic: MakeTopic
) -> None:
    """What the backup shows as unpublished was published at least once, behind the last batch of the group."""
    topic = make_topic(partitions=1)
    with connect(database) as conn:
        insert_numbered(conn, topic, 10)
    run(database, bootstrap_servers, *EXACTLY)
    with connect(database) as conn:
        insert_numbered(conn, topic, 10, start=10)
    backup = copied(database, make_database)
    run(database, bootstrap_servers, *AT_LEAST)
    with RelayProcess(backup, bootstrap_servers, *EXACTLY) as relay:
        assert relay.wait(60) == 1, relay.output()
        assert "BATCH_NOT_PROVEN" in relay.output()
    run(backup, bootstrap_servers, *AT_LEAST)
    run(backup, bootstrap_servers, *EXACTLY)
    check_once(bootstrap_servers, topic, numbered(20))


def test_a_relay_may_die_while_it_leaves_a_group_and_the_next_one_goes_on_with_it(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic, number = make_topic(partitions=1), 0
    for when in ("before", "after"):
        insert_numbered(conn, topic, 10, start=number)
        run(database, bootstrap_servers, *EXACTLY)
        names = conn.execute(NAMES).fetchall()
        entry = (ENTRY, "publisher.hands.transactional:TransactionalWires.commit_nothing", when, "1")
        with RelayProcess(database, bootstrap_servers, *AT_LEAST, entry=entry) as relay:
            relay.wait_until_it_kills_itself()
        insert_numbered(conn, topic, 10, start=number + 10)
        run(database, bootstrap_servers, *EXACTLY)
        assert conn.execute(NAMES).fetchall() == names
        number += 20
    check_once(bootstrap_servers, topic, numbered(number))


def test_a_backup_that_issues_epochs_again_makes_names_that_kafka_does_not_know(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    insert_numbered(conn, topic, 10)
    run(database, bootstrap_servers, *EXACTLY)
    conn.execute(BEFORE)
    insert_numbered(conn, topic, 10, start=10)
    run(database, bootstrap_servers, *EXACTLY)
    assert conn.execute("SELECT max(epoch) FROM outbox.lane").fetchone() == (1,)
    check_once(bootstrap_servers, topic, numbered(20))


def test_an_offset_whose_marker_is_not_written_yet_accuses_nobody(
    database: str,
    bootstrap_servers: str,
    conn: Connection,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka replies to the end of a transaction before its offset can be read; the owner dies then."""
    topic = make_topic(partitions=1)
    insert_numbered(conn, topic, 10)
    run(database, bootstrap_servers, *EXACTLY)
    run(database, bootstrap_servers, *EXACTLY)
    assert conn.execute("SELECT min(batch) > 0 FROM outbox.intent").fetchone() == (True,)
    asked, offset = [], TransactionalWires.offset

    def late(wires: TransactionalWires, *, stable: bool = True) -> Proof | None:
        asked.append(stable)
        return offset(wires) if stable else Proof(0, "")

    monkeypatch.setattr(TransactionalWires, "offset", late)
    with RelayThread(database, bootstrap_servers, delivery=Guarantee.EXACTLY_ONCE) as relay:
        insert_numbered(conn, topic, 10, start=10)
        wait_until(lambda: relay.error or relay.find("batches proven"), "its batches are proven")
        assert relay.error is None
        wait_published(conn)
    assert asked[:2] == [False, True]
    check_once(bootstrap_servers, topic, numbered(20))


@pytest.mark.parametrize("step", ["_prove", "_publish"])
def test_two_relays_that_divide_the_lanes_anew_prove_the_same_batches_once(
    step: str, database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    """The last owner had all lanes, and died before it recorded a batch. Both take a part, and one stands still."""
    topic = make_topic(partitions=2)
    keys = keys_of_lanes(conn, topic, 0, 7)
    committed: list[tuple[str, int]] = [(key, number) for key in keys for number in range(20)]
    with conn.transaction():
        for key, number in committed:
            insert(conn, topic, key, f"{key}:{number}")
    dies: Any = (ENTRY, "publisher.core.transactions:Transactions.committed", "before", "1")
    with RelayProcess(database, bootstrap_servers, *EXACTLY, entry=dies) as owner:
        owner.wait_until_it_kills_itself()
    pauses = (ENTRY, f"publisher.hands.proving:Proving.{step}", "pauses before", "1")
    options = ("--delivery", "exactly-once", "--lease", "30", "--shard")
    with RelayProcess(database, bootstrap_servers, *options, "2/2", entry=pauses) as one:
        one.wait_until_it_pauses_itself()
        with RelayProcess(database, bootstrap_servers, *options, "1/2") as other:
            begins = "exactly-once delivery begins"
            wait_until(lambda: other.find(begins) or conn.execute(WAITS).fetchone(), "it begins, or waits")
            one.go_on()
            one.wait_for(begins)
            other.wait_for(begins)
            for key in keys:
                committed.append((key, 20))
                insert(conn, topic, key, f"{key}:20")
            wait_published(conn)
            other.stop()
        one.stop()
    assert conn.execute(TWICE).fetchall() == []
    check_once(bootstrap_servers, topic, committed)
