"""outbox.send in SQL: text and JSON arrive as they were given, through a driver's text format and through psql."""

from __future__ import annotations

import json
import shutil
import subprocess

import psycopg
import pytest
from psycopg.types.json import Jsonb

BODIES = [
    '{"s":"a\\b"}', '{"s":"C:\\\\new"}', "\\x41", "it's", 'say "x"', "line\nend\r\n\ttab", "", "日本 ü", "\\",
    "\\000", "$1 %s",
]  # fmt: skip


@pytest.mark.parametrize("role", ["outbox_producer"])
def test_text_arrives_as_it_was_given(database: str, role: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        ids = [
            connection.execute("SELECT outbox.send('orders', %t, key => %t)", [body, body]).fetchone()
            for body in BODIES
        ]
        connection.execute("RESET ROLE")
        rows = connection.execute("SELECT message_id, body, key FROM outbox.message ORDER BY id").fetchall()
    assert [(row[0], row[1].decode(), row[2].decode()) for row in rows] == [
        (found[0], body, body) for found, body in zip(ids, BODIES, strict=True) if found
    ]


def test_json_arrives_as_the_same_document(database: str) -> None:
    document = {"s": "a\\b", "n": [1, None, "\n"], "q": '"'}
    with psycopg.connect(database) as connection:
        connection.execute(
            "SELECT outbox.send('orders', %s, 'k', headers => %s)", [Jsonb(document), Jsonb({"a": "b"})]
        )
        row = connection.execute("SELECT body, key, headers FROM outbox.message").fetchone()
    assert row is not None
    assert json.loads(row[0]) == document
    assert row[1:] == (b"k", {"a": "b"})


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql_sends_variables_and_literals_unchanged(database: str) -> None:
    script = "".join(f"SELECT outbox.send('orders', :'body{n}');\n" for n in range(len(BODIES)))
    script += "SELECT outbox.send('orders', '{\"s\":\"a\\b\"}');\n"
    command = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", database]
    command += [f"--set=body{n}={body}" for n, body in enumerate(BODIES)]
    done = subprocess.run(
        command, input=script, text=True, encoding="utf-8", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT convert_from(body, 'UTF8') FROM outbox.message ORDER BY id"
        ).fetchall()
    assert [row[0] for row in rows] == [*BODIES, '{"s":"a\\b"}']


def test_the_rules_hold_for_the_functions_as_well(database: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("SELECT outbox.send('or ders', 'x')")
