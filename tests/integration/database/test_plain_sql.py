"""The plain INSERT of docs/reference/sql.md: its examples run as they stand, with psql where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "reference" / "sql.md"
EXAMPLES = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r"^\| (`[a-z_`, ]+`) \|", re.MULTILINE)
OWN = {"xid", "position", "id", "born_at", "decided_at", "remark"}


def run(dsn: str, script: str) -> None:
    """Run a script as psql does, by psql itself if it is installed: the first error ends it."""
    if psql := shutil.which("psql"):
        command = [psql, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", dsn]
        environment = {**os.environ, "PGCLIENTENCODING": "UTF8"}
        done = subprocess.run(
            command,
            input=script,
            text=True,
            encoding="utf-8",
            capture_output=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    else:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(script.encode())


def example(text: str) -> str:
    """The one example that contains the text."""
    found: list[str] = [script for script in EXAMPLES if text in script]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("script", EXAMPLES, ids=[script.split("\n")[0][:50] for script in EXAMPLES])
def test_example_runs_alone(database: str, script: str) -> None:
    run(database, script)


def test_examples_run_in_the_order_of_the_page_and_leave_their_messages(database: str) -> None:
    run(database, "".join(EXAMPLES))
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT topic, key, body, state FROM outbox.message ORDER BY position"
        ).fetchall()
    assert rows[:2] == [("orders", b"o-1", b'{"state": "paid"}', "COMMITTED")] * 2
    assert rows[2] == ("orders", "订单-1".encode(), b"\0\xff", "COMMITTED")
    assert [body for topic, key, body, state in rows if key == b"N14228"][1:] == [b"boarding", b"departed"]
    assert [state for topic, _, _, state in rows if topic == "payments"] == ["UNKNOWN"]
    assert len(rows) == 13


def test_examples_run_with_the_rights_of_a_producer(database: str) -> None:
    scripts = [
        script for script in EXAMPLES if "outbox.topic" not in script and "message_status" not in script
    ]
    run(database, "CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL);"
                  "GRANT ALL ON orders TO outbox_producer;")  # fmt: skip
    body = "".join(scripts).replace(
        "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, state text NOT NULL);", ""
    )
    run(database, f"SET ROLE outbox_producer;\n{body}")


@pytest.mark.feature("S-22")
def test_sending_once_twice_is_one_message(database: str) -> None:
    for _ in range(2):
        run(database, example("request-17"))
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM outbox.message").fetchone() == (1,)


def test_page_lists_every_column_that_may_be_written_and_no_other(database: str) -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Columns")[2].partition("## ")[0]
    documented = {name for cell in COLUMN.findall(table) for name in re.findall(r"[a-z_]+", cell)}
    with psycopg.connect(database) as connection:
        columns = {
            name
            for (name,) in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.message'::regclass AND attnum > 0"
            )
        }
        granted = {
            name
            for (name,) in connection.execute(
                """SELECT column_name FROM information_schema.column_privileges WHERE table_schema = 'outbox'
                   AND table_name = 'message' AND grantee = 'outbox_producer' AND privilege_type = 'INSERT'"""
            )
        }
    assert documented == columns - OWN == granted


@pytest.mark.parametrize(
    ("columns", "values", "rule"),
    [
        ("topic", "'or ders'", "message_topic_is_legal"),
        ("topic, queue", "'orders', -1", "message_queue_is_a_partition"),
        ("topic, headers", """'orders', '{"outbox-id": "1"}'""", "message_header_is_not_reserved"),
        ("topic, headers", """'orders', '{"a": 1}'""", "message_headers_are_text"),
        ("topic, tags", "'orders', ARRAY['a|b']", "message_tags_are_separable"),
        ("topic, index_keys", "'orders', ARRAY['a b']", "message_index_keys_are_separable"),
        ("topic, state", "'orders', 'DEAD'", "message_state_is_a_birth"),
        ("topic, lane", "'orders', 8", "message_lane_is_one"),
        ("topic, lane", "'orders', -1", "message_lane_is_one"),
        ("topic, deliver_at", "'orders', 'infinity'", "message_deliver_at_is_a_time"),
        ("topic, deliver_at", "'orders', '-infinity'", "message_deliver_at_is_a_time"),
        ("topic, deliver_at", "'orders', '10000-01-01'", "message_deliver_at_is_a_time"),
        ("topic, born_at", "'orders', 'infinity'", "message_born_at_is_a_time"),
        ("topic, born_at", "'orders', '0001-01-01 BC'", "message_born_at_is_a_time"),
        ("topic, lane, born_at", "'orders', 3, '10000-01-01'", "message_born_at_is_a_time"),
        (
            "topic, deliver_at, state, producer_group",
            "'orders', 'infinity', 'UNKNOWN', 'g'",
            "message_deliver_at_is_a_time",
        ),
        ("topic, state", "'orders', 'UNKNOWN'", "message_half_has_a_group"),
        (
            "topic, message_id",
            "'orders', 'ffffffff-0001-8000-8000-000000000000'",
            "message_id_is_ours_or_foreign",
        ),
    ],
)
def test_rules_hold_for_every_language(database: str, columns: str, values: str, rule: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.CheckViolation) as caught:
        connection.execute(f"INSERT INTO outbox.message ({columns}) VALUES ({values})".encode())
    assert caught.value.diag.constraint_name == rule
