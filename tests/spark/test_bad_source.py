"""What an outbox may hold, and what may happen to its PostgreSQL while it is read."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox_local.stack.api import Stack
from tests.support.plain_inserts import connect, insert
from tests.support.refused_jobs import Job, MakeWorld, in_mid_read
from tests.support.spark_marks import MARKS

pytestmark = MARKS

DEEP = 1000
JSON = {
    b'{"a": 1, "a": 2}': True,
    b"1" * 400: True,
    b"1e400": True,
    b"-0.0": True,
    b'"\\u0000"': True,
    b'"\\ud800"': True,
    b" [1]\r\n": True,
    b"[" * 100 + b"]" * 100: True,
    b"NaN": False,
    b"[Infinity]": False,
    b"{'a': 1}": False,
    b"[1,]": False,
    b"01": False,
    b'"\xff"': False,
    b'"\xed\xa0\x80"': False,
    b'\xef\xbb\xbf{"a": 1}': False,
    b"\x00": False,
    b"": False,
    b"{} {}": False,
    b"[" * DEEP: False,
}
"""Bodies, and whether they are JSON (RFC 8259, UTF-8)."""


def test_a_column_of_an_unknown_type_is_refused_and_an_additional_column_is_not(
    job: Job, make_world: MakeWorld
) -> None:
    world = make_world()
    job.succeeds("run", *world.given)
    before = world.history()
    world.happens()
    with connect(world.dsn) as conn:
        conn.execute("ALTER TABLE outbox.event ALTER COLUMN reason TYPE varchar(9000)")
        job.refuses(
            "run", *world.given, kind="SourceError",
            words=("outbox.event.reason", "character varying(9000)", "expected text", "release"),
        )  # fmt: skip
        conn.execute("ALTER TABLE outbox.event RENAME COLUMN reason TO why")
        job.refuses(
            "run", *world.given, kind="SourceError", words=("outbox.event.reason is missing", "release")
        )
        assert world.history() == before
        conn.execute("ALTER TABLE outbox.event RENAME COLUMN why TO reason")
        conn.execute("ALTER TABLE outbox.event ALTER COLUMN reason TYPE text")
        conn.execute("ALTER TABLE outbox.message ADD COLUMN place point DEFAULT '(1,2)'")
        conn.execute("ALTER TABLE outbox.event ADD COLUMN much money[]")
    job.succeeds("run", *world.given)
    world.is_true()


def test_every_body_is_kept_as_it_was_and_parsed_only_where_it_is_json(
    job: Job, make_world: MakeWorld
) -> None:
    world = make_world()
    deep = b"[" * DEEP + b"]" * DEEP
    with connect(world.dsn) as conn:
        for number, body in enumerate((*JSON, deep)):
            insert(conn, "bodies", str(number), body)
    job.succeeds("run", *world.given)
    found = {int(row[3]): row[4:6] for row in world.history() if row[2] == "bodies"}
    assert [body for _, (body, _) in sorted(found.items())] == [*JSON, deep]
    for number, (body, is_json) in enumerate(JSON.items()):
        assert found[number][1] == (body.decode() if is_json else None), body
    # Nested deeper than Spark's parser goes it is kept raw: as text it would be JSON.
    assert found[len(JSON)][1] in (None, deep.decode())


def test_sessions_ended_in_mid_read_leave_nothing_partial_for_the_next_run(
    job: Job, make_world: MakeWorld
) -> None:
    world = make_world()
    job.succeeds("run", *world.given)
    before = world.history()
    world.happens()

    def strike(conn: psycopg.Connection[Any]) -> None:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'outbox-etl' AND datname = current_database()"
        )

    with in_mid_read(world.dsn, strike):
        job.refuses("run", *world.given, kind="SourceError", words=("PostgreSQL: ", "run again"))
    assert world.history() == before
    job.succeeds("run", *world.given)
    world.is_true()


def test_a_postgresql_that_is_killed_in_mid_read_leaves_nothing_half(
    job: Job, make_world: MakeWorld, private_stack: Stack, private_database: str
) -> None:
    world = make_world("iceberg", dsn=private_database)
    world.stream.close()

    def strike(conn: psycopg.Connection[Any]) -> None:
        private_stack.kill_postgres()

    with in_mid_read(world.dsn, strike):
        job.refuses("run", *world.given, kind="SourceError", words=("PostgreSQL: ", "--dsn", "run again"))
    assert world.history() == []
    private_stack.start_postgres()
    job.succeeds("run", *world.given)
    world.is_true()
