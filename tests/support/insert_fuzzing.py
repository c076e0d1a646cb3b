"""Random rows for outbox.message, as any program with the role outbox_producer may try to insert them."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tests.support.kafka_records import read_topic

Columns = dict[str, Any]
PARTITIONS = 4
TEXTS: list[Any] = [
    "", " ", "a", "N", "NULL", "null", "a b", "a|b", "||", "\\", '"', "'", "{}", "{", "[", "\t",
    "\n", "\r\n", "\x01\x7f",
    "ü",
    "日本", "\u202e", "\u00a0", "\U0001f600", "%s", "$1", "outbox-id", "../..",
    "x" * 255, "x" * 256, "ü" * 255, "y" * 3000,
]  # fmt: skip
BYTES: list[Any] = [
    None, b"", b"\0", b"\xff\xfe", b"k", b"7", b"-7", b"+0", b"1" * 40, b"9" * 41, b"1.5",
    b"NaN", "٣".encode(), b"k" * 9000,
    b"b" * 70_000,
]  # fmt: skip
HEADERS: list[Any] = [
    None, "null", "{}", "[]", "1", '"x"', '{"a":"b"}', '{"a":null}', '{"a":1}', '{"a":["x"]}',
    '{"a":[]}', '{"a":[null]}',
    '{"a":{"b":{}}}', '{"":"x"}', '{"outbox-id":"00000000-0000-0000-0000-000000000000"}',
    '{"OUTBOX-tags":"x"}',
    '{"\\u006futbox-id":"x"}', '{"TraceParent":"x"}', '{"a":"\\ud800"}', '{"a":"\\ud83d\\ude00"}',
    '{"a":"\\u0000"}',
    '{"a":"\\": \\"","b":true}', '{"a\\"":2}', '["outbox-id"]', '{"a":1e400}',
    '{"trace":"t","Out":"o","ü":"ü"}',
    json.dumps({"h" * 3000: "v" * 30_000}), json.dumps({str(n): "" for n in range(3000)}), "{" + '"a":{' * 60,
]  # fmt: skip
TIMES: list[Any] = [
    None, "infinity", "-infinity", "4713-01-01 BC", "0001-01-01", "1969-12-31", "now",
    "2999-01-01", "9999-12-31 23:59:59",
    "9999-12-31 23:59:59-12", "294276-12-31", "2026-02-30", "NaN",
]  # fmt: skip
SPANS: list[Any] = [
    None,
    "0",
    "-1 s",
    "1 s",
    "3650 days",
    "3651 days",
    "178000000 years",
    "NaN",
    "infinity",
    "-1 month 40 days",
]
NUMBERS: list[Any] = [None, 0, 1, 3, 4, -1, 8, 32767, 2**31 - 1, -(2**31), 2**40]
ARRAYS: list[Any] = [
    "{}", "{a}", "{a,b}", "{NULL}", '{"NULL"}', '{""}', "{a,NULL}", '{"a|b"}', '{"a b"}',
    "{{a},{b}}", "[0:1]={a,b}",
    '{"\\\\","\\""}', "{日本}", '{"a\\nb"}', "{N,NULLABLE}", "{" + "t" * 5000 + "}",
    "{" + ",".join(["u"] * 2000) + "}",
]  # fmt: skip
TRACES: list[Any] = [
    None, "", "zzz", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "-" * 55, "0" * 55, "\n", '": null}\n',
    "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
]  # fmt: skip
IDS: list[Any] = [
    "random",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-8fff-ffff-ffffffffffff",
    "x",
    None,
]
FORGERIES: list[tuple[str, Columns]] = [
    *(
        (
            "message_topic_is_legal",
            {"topic": 'a\n{}\n{}\n{"x": "', "headers": headers, "traceparent": '": null}\n', **half},
        )
        for headers in ('{"": "x"}', '{"": 1e5000}', '{"outbox-id": "x"}')
        for half in ({}, {"state": "UNKNOWN", "producer_group": "g"})
    ),
    ("message_topic_is_legal", {"topic": 'a\n{a}\n{b}\n{"x": "', "tags": ["|"], "traceparent": '"}\n'}),
    ("message_traceparent_is_w3c", {"traceparent": "\na"}),
    ("message_traceparent_is_w3c", {"traceparent": '{"a": "b"}\n'}),
    ("message_tags_are_separable", {"tags": ["a}\n{}\n{}\n\norders|"]}),
    ("message_index_keys_are_separable", {"index_keys": ["a}\n\n\norders"]}),
    ("message_headers_are_text", {"headers": '{"a": 1, "b": "\\n"}'}),
]  # fmt: skip
"""Rows whose columns hold the text of the columns beside them, each with the rule that refuses it."""
GROUPS = [*TEXTS, None, "g", "fuzz-tx", "fuzz-normal"]


@dataclass
class Fuzzed:
    """What became of the rows that were tried."""

    tried: int = 0
    innocent: set[str] = field(default_factory=set)
    accepted: dict[str, Columns] = field(default_factory=dict)


def random_row(chance: random.Random, topics: Sequence[str]) -> Columns:
    """Return one row: mostly sound, with a few columns of extremes, half of the rows with a lane."""
    row: Columns = {"topic": chance.choice(topics), "key": b"k%d" % chance.randrange(50), "body": b"x"}
    if chance.random() < 0.5:
        row["lane"] = chance.choice([*range(8), *NUMBERS])
    pools: dict[str, list[Any]] = {
        "topic": [*topics, *topics, ".", "..", "t" * 250, "x" * 40_000, "", " ", "a b", "a|b",
        "\\n", "\\u00fc", "\n", f"{topics[0]}\n", f"\n{topics[0]}", 'a\n{}\n{}\n{"x": "'],
        "key": BYTES, "body": BYTES, "order_key": [*BYTES, b"o" * 1_048_577], "headers": HEADERS,
        "queue": NUMBERS,
        "selector": [*TEXTS[:20], "murmur2", "modulo", "random", "round_robin", "java_hash", "crc32", None],
        "tags": ARRAYS, "index_keys": ARRAYS,
        "state": ["COMMITTED", "UNKNOWN", "DEAD", "EXHAUSTED", "", None], "producer_group": GROUPS,
        "transaction_id": TEXTS, "checker": TEXTS, "biz_type": TEXTS, "biz_id": TEXTS, "deliver_at": TIMES,
        "check_after": SPANS, "traceparent": TRACES, "message_id": IDS,
    }  # fmt: skip
    for name in chance.sample(list(pools), chance.choice([0, 1, 1, 1, 2, 3, 5])):
        row[name] = chance.choice(pools[name])
    if row.get("message_id") == "random":
        row["message_id"] = str(uuid.UUID(int=chance.getrandbits(128)))
    if chance.random() < 0.01:
        row["body"] = b"x" * chance.choice([1_048_000, 1_048_588, 2_000_000])
    return row


def insert(connection: psycopg.Connection[Any], row: Columns) -> str | None:
    """Insert a row; return its message id, or None where PostgreSQL refuses it."""
    statement = sql.SQL("INSERT INTO outbox.message ({}) VALUES ({}) RETURNING message_id::text").format(
        sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(sql.Placeholder() * len(row))
    )
    try:
        found = connection.execute(statement, list(row.values())).fetchone()
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.InsufficientPrivilege):
        return None
    assert found is not None
    return str(found[0])


def write_rows(admin: str, producer: str, topics: Sequence[str], count: int, seed: int) -> Fuzzed:
    """Try `count` random rows as a producer, with an innocent message of a random key behind every fourth."""
    chance, result = random.Random(seed), Fuzzed()
    with psycopg.connect(admin, autocommit=True) as owner:
        for topic in topics:
            owner.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, %s)", [topic, PARTITIONS])
        owner.execute(
            "INSERT INTO outbox.producer_group (name, message_type)"
            " VALUES ('fuzz-tx', 'TRANSACTION'), ('fuzz-normal', 'NORMAL')"
        )
    with psycopg.connect(producer, autocommit=True) as connection:
        for number in range(count):
            row = random_row(chance, topics)
            if number % 25 == 24:  # every forgery comes at least once in 300 rows
                row = {"topic": chance.choice(topics), **FORGERIES[number // 25 % len(FORGERIES)][1]}
            result.tried += 1
            if (message_id := insert(connection, row)) is not None:
                result.accepted[message_id] = row
            if not number % 4:
                sound = {"topic": chance.choice(topics), "key": b"i%d" % number, "body": b"innocent"}
                found = insert(connection, sound)
                assert found is not None
                result.innocent.add(found)
    return result


def verify(admin: str, bootstrap_servers: str, topics: Sequence[str], fuzzed: Fuzzed) -> None:
    """Compare what is in Kafka with what was accepted: all of it, and nothing that the rules refuse."""
    with psycopg.connect(admin, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT message_id::text, status, state, topic, deliver_at > now() FROM outbox.message_status"
        ).fetchall()
    expected = {row[0] for row in rows if row[1] == "PUBLISHED"}
    assert {row[0] for row in rows} == fuzzed.innocent | set(fuzzed.accepted)
    assert fuzzed.innocent <= expected
    unpublished = [row for row in rows if row[0] not in expected]
    assert all(row[2] == "UNKNOWN" or row[4] for row in unpublished), unpublished
    seen = set()
    for topic in topics:
        for partition, headers in read_headers(bootstrap_servers, topic):
            names = [name for name, _ in headers]
            own = [
                name for name in names if name.lower().startswith("outbox-") or name.lower() == "traceparent"
            ]
            assert len(own) == len(set(own)), names
            assert "" not in names
            message_id = dict(headers)["outbox-id"].decode()
            seen.add(message_id)
            row = fuzzed.accepted.get(message_id, {})
            if row.get("queue") is not None:
                assert partition == row["queue"]
    assert seen == expected


def read_headers(bootstrap_servers: str, topic: str) -> list[tuple[int, list[tuple[str, Any]]]]:
    """Read partition and headers of all records of a topic."""
    return [(record.partition, list(record.headers)) for record in read_topic(bootstrap_servers, topic)]
