"""A dump is read into another cluster: what survives goes on, and what only Kafka has is listed by its id."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase


@pytest.mark.feature("H-16")
def test_what_a_restored_dump_lacks_is_listed_and_the_rest_goes_on(
    private_stack: Stack,
    private_database: str,
    private_topic: str,
    make_database: MakeDatabase,
    tmp_path: Path,
) -> None:
    kafka, topic = private_stack.bootstrap_servers, private_topic
    process = private_stack.process("postgres")
    assert process is not None, "PostgreSQL is not embedded"
    programs, dump = Path(f"/proc/{process.pid}/exe").resolve().parent, tmp_path / "dump"
    with connect(private_database) as conn, RelayProcess(private_database, kafka) as relay:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [topic])
        insert_numbered(conn, topic, 40)
        wait_published(conn)
        subprocess.run(
            [programs / "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={private_database}"],
            check=True,
        )
        lost = {insert(conn, topic, f"lost-{i}", "lost:0") for i in range(7)}
        wait_published(conn)
        relay.stop()
    restored = make_database(migrated=False)
    subprocess.run(
        [
            programs / "pg_restore",
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
            f"--dbname={restored}",
            dump,
        ],
        check=True,
    )
    with connect(restored) as conn, RelayProcess(restored, kafka) as relay:
        relay.wait_for("this server took over from another one", repair="outbox failover scan")
        insert_numbered(conn, topic, 20, start=40)
        wait_published(conn)
        relay.stop()
    records = [
        record for record in read_topic(kafka, topic)
        if record.key is not None and not record.key.startswith(b"lost")
    ]  # fmt: skip
    assert len(records) == 60, "what was recorded as published is not published again"
    assert not compare(records, numbered(60)).broken
    place = ("--dsn", restored, "--bootstrap-servers", kafka)
    found = outbox("failover", "scan", "--json", *place)
    assert (found.code, found.err) == (1, "")
    assert {one["message_id"] for one in found.json["lost"]} == lost
