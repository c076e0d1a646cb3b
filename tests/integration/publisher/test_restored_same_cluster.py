"""A dump is read into the cluster that it was made from: the relay notices, and what only Kafka has is listed.

System identifier and timeline are unchanged. The copied rows tell: one states the transaction that wrote it, and was
written by another one, the restore's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from outbox_local.stack.api import Stack
from outbox_relay.publisher.lease import STATEMENTS
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic

pytestmark = pytest.mark.xdist_group("private stack")
NOTED = "SELECT count(*) FROM outbox.failover"


class Copying(NamedTuple):
    """The programs of the server of both databases, its broker, and where the dump is."""

    tools: Path
    kafka: str
    dump: Path


@pytest.fixture
def copying(private_stack: Stack, tmp_path: Path) -> Copying:
    process = private_stack.process("postgres")
    assert process is not None, "PostgreSQL is not embedded"
    tools = Path(f"/proc/{process.pid}/exe").resolve().parent
    return Copying(tools, private_stack.bootstrap_servers, tmp_path / "dump")


def one(conn: Connection, statement: str) -> object:
    row = conn.execute(statement).fetchone()
    assert row is not None
    return row[0]


def publish(dsn: str, kafka: str, topic: str, *, notices: bool) -> None:
    """Let a relay publish all, and stop cleanly; see whether it notices a restore."""
    with connect(dsn) as conn, RelayProcess(dsn, kafka) as relay:
        if notices:
            relay.wait_for("a dump was restored into this database")
        insert(conn, topic, "k", b"x")
        wait_published(conn)
        relay.stop()
        assert one(conn, NOTED) == int(notices)


@pytest.mark.parametrize("how", ["another database", "the same database"])
def test_what_only_kafka_has_after_a_restore_into_the_same_cluster_is_listed(
    how: str,
    copying: Copying,
    private_topic: str,
    make_private_topic: MakeTopic,
    make_private_database: MakeDatabase,
) -> None:
    (tools, kafka, dump), topic = copying, private_topic
    source, innocent = make_private_database(), make_private_database()
    beside = make_private_topic(partitions=1)
    publish(innocent, kafka, beside, notices=False)
    with connect(source) as conn, RelayProcess(source, kafka) as relay:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [topic])
        insert_numbered(conn, topic, 40)
        wait_published(conn)
        subprocess.run(
            [tools / "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={source}"], check=True
        )
        lost = {insert(conn, topic, f"lost-{i}", "lost:0") for i in range(7)}
        wait_published(conn)
        relay.stop()
    if how == "the same database":
        restored = source
        with connect(source) as conn:
            conn.execute("DROP SCHEMA outbox, public CASCADE")
            conn.execute("CREATE SCHEMA public")
    else:
        restored = make_private_database(migrated=False)
    subprocess.run([tools / "pg_restore", "--exit-on-error", f"--dbname={restored}", dump], check=True)
    with connect(restored) as conn, RelayProcess(restored, kafka) as relay:
        relay.wait_for("this server took over from another one", repair="outbox failover scan")
        insert_numbered(conn, topic, 20, start=40)
        wait_published(conn)
        relay.stop()
        assert one(conn, NOTED) == 1
    assert "failover" in succeed("status", "--json", OUTBOX_DSN=restored).out
    records = [
        record for record in read_topic(kafka, topic)
        if record.key is not None and not record.key.startswith(b"lost")
    ]  # fmt: skip
    assert len(records) == 60, "what was recorded as published is not published again"
    assert not compare(records, numbered(60)).broken
    place = ("--dsn", restored, "--bootstrap-servers", kafka)
    found = outbox("failover", "scan", "--json", *place)
    assert (found.code, found.err) == (1, "")
    assert {each["message_id"] for each in found.json["lost"]} == lost
    # It is noticed once, and nobody else is accused.
    with connect(restored) as conn, RelayProcess(restored, kafka) as relay:
        insert(conn, topic, "k", "after:0")
        wait_published(conn)
        relay.stop()
        assert one(conn, "SELECT scanned_at IS NOT NULL FROM outbox.failover") is True
    publish_again(innocent, kafka, beside)


def publish_again(dsn: str, kafka: str, topic: str) -> None:
    with connect(dsn) as conn, RelayProcess(dsn, kafka) as relay:
        insert(conn, topic, "k", b"x")
        wait_published(conn)
        relay.stop()
        assert one(conn, NOTED) == 0


def test_a_dump_of_an_outbox_without_the_mark_is_known_by_its_newest_publication(
    copying: Copying, private_topic: str, make_private_database: MakeDatabase
) -> None:
    (tools, kafka, dump), topic = copying, private_topic
    source = make_private_database()
    publish(source, kafka, topic, notices=False)
    with connect(source) as conn:
        conn.execute("UPDATE outbox.origin SET xid = NULL")  # as an earlier version leaves it
    publish_again(source, kafka, topic)
    with connect(source) as conn:
        conn.execute("UPDATE outbox.origin SET xid = NULL")
    subprocess.run([tools / "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={source}"], check=True)
    restored = make_private_database(migrated=False)
    subprocess.run([tools / "pg_restore", "--exit-on-error", f"--dbname={restored}", dump], check=True)
    with connect(restored) as conn:
        assert one(conn, STATEMENTS["is_copied"]) is True, (
            conn.execute("SELECT xmin, xid, epoch, batch FROM outbox.publication").fetchall()
            + conn.execute("SELECT xmin, xid FROM outbox.origin").fetchall()
        )
    publish(restored, kafka, topic, notices=True)


@pytest.mark.parametrize(
    "change", ["VACUUM (FREEZE)", "VACUUM (FULL, FREEZE)", "CLUSTER"], ids=["freeze", "full", "cluster"]
)
def test_what_rewrites_rows_without_copying_them_is_no_restore(
    change: str, private_stack: Stack, private_topic: str, private_database: str
) -> None:
    kafka, topic = private_stack.bootstrap_servers, private_topic
    publish(private_database, kafka, topic, notices=False)
    with connect(private_database) as conn:
        for table, index in (("origin", "origin_pkey"), ("publication_p000000000000001", None)):
            if change != "CLUSTER":
                conn.execute(f"{change} outbox.{table}")
            elif index is not None:
                conn.execute(f"CLUSTER outbox.{table} USING {index}")
    publish_again(private_database, kafka, topic)


def test_a_held_row_of_a_lane_puts_off_the_first_relay_of_a_restored_database(
    private_stack: Stack, private_topic: str, private_database: str, make_private_database: MakeDatabase
) -> None:
    kafka, topic = private_stack.bootstrap_servers, private_topic
    publish(private_database, kafka, topic, notices=False)
    innocent = make_private_database()
    with connect(private_database) as conn, psycopg.connect(private_database) as holder:
        # As a restore leaves it: the row's xid is data.
        conn.execute("UPDATE outbox.origin SET xid = '3'")
        holder.execute("SELECT FROM outbox.lane WHERE lane = 3 FOR UPDATE")
        with RelayProcess(private_database, kafka) as relay:
            relay.wait_for("a dump was restored into this database")
            publish_again(innocent, kafka, topic)
            assert one(conn, NOTED) == 0
            holder.rollback()
            relay.wait_for("this server took over from another one")
            insert(conn, topic, "k", b"x")
            wait_published(conn)
            relay.stop()
