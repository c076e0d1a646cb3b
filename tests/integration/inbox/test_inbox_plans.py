"""The statements of consumers stay cheap: planned while the tables are empty, run when they are full."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from outbox.inbox.membership import SQL as GROUPS
from outbox.inbox.plans import SQL
from tests.support.plain_inserts import connect
from tests.support.query_plans import Prepared, nodes, rows_read

ID = "00000000-0000-0000-0000-000000000001"
MANY = 50
IDS = [UUID(int=number) for number in range(MANY)]
DAYS = ["2026-11-01"] * MANY
IDENTITY = ("integer", "uuid", "date", "integer", "integer", "bigint", "bytea")
NEXT_DUE = ("integer", "text", "boolean", "text", "float8", "text[]", "text[]")
STATEMENTS: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "take": ((*IDENTITY, "bytea", "boolean"), (1, ID, "2026-11-01", 1, 0, 7, b"d", b"k", True)),
    "take_batch": (
        ("integer", "uuid[]", "date[]", "integer[]", "integer[]", "bigint[]", "bytea[]", "boolean"),
        (1, IDS, DAYS, [1] * MANY, [0] * MANY, [*range(MANY)], [b"d"] * MANY, True),
    ),
    "known_batch": (
        ("integer", "uuid[]", "date[]", "bytea[]", "integer[]"),
        (1, IDS, DAYS, [b"d"] * MANY, [1] * MANY),
    ),
    "held_keys": (
        ("integer", "integer[]", "bytea[]"),
        (1, [1] * MANY, [f"k{number}".encode() for number in range(MANY)]),
    ),
    "known": (("integer", "uuid", "date", "bytea", "integer"), (1, ID, "2026-11-01", b"d", 1)),
    "hold": (("integer", "integer", "bytea"), (1, 1, b"k500")),
    "next_due": (NEXT_DUE, (1, "f", False, "m", 0, ["t3"], ["t1"])),
    "next_due, none": (NEXT_DUE, (2, "f", False, "m", 0, [], ["t1"])),
    "lock_again": (("bigint", "integer", "xid8"), (500, 1, "1")),
    "lock_held_key": (("integer", "integer", "bytea"), (1, 1, b"k500")),
    "take_out": (("bigint",), (500,)),
    "follow": (("integer", "integer", "bytea", "bigint"), (1, 1, b"k500", 0)),
    "let_go": (("integer", "integer", "bytea"), (1, 1, b"k500")),
    "failed_again": (
        ("bigint", "integer", "float8", "text", "text", "xid8"),
        (500, 1, 1.0, "f", "e", "1"),
    ),
    "died": (("bigint", "integer"), (500, 1)),
    "postpone": (("bigint", "float8", "integer"), (500, 1.0, 1)),
    "count_behind": (("integer", "bigint", "bigint"), (1, 5000, 300)),
    "positions": (("integer", "integer"), (1, 1)),
    "begin": (("integer", "integer", "integer[]", "bigint[]"), (1, 1, [1], [5])),
    "store": (("integer", "integer[]", "integer[]", "bigint[]", "integer[]"), (1, [1], [1], [5], [0])),
    "claim": (("integer", "integer", "integer[]", "text"), (1, 1, [1, 2], "m")),
    "forget_runs": (("integer", "integer", "integer[]", "integer[]"), (1, 1, [1], [1])),
    "begun_runs": (("integer", "integer", "integer[]"), (1, 1, [1])),
    "release": (("integer", "text", "integer[]", "integer[]"), (1, "m", [1], [1])),
    "count_run": (
        ("integer", "integer", "integer", "bigint", "uuid", "date", "boolean", "text"),
        (1, 1, 1, 5, ID, "2026-11-01", False, "m"),
    ),
}
MOST = {
    "count_behind": 400,
    "store": 400,
    "release": 400,
    "claim": 450,
    "take_batch": 2 * MANY,
    "known_batch": 2 * MANY,
    "held_keys": 2 * MANY,
}
"""Rows that a statement may read, where it is more than a few: all positions of the group, or one for each message."""
FILL = """
    INSERT INTO outbox.inbox_topic (name, kafka_id) SELECT 't' || i, 'c/' || i FROM generate_series(1, 20) i;
    INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
        SELECT 1, 1, convert_to('k' || i, 'UTF8') FROM generate_series(1, 4000) i;
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key,
            header_names, header_values, published_at, state, attempts, due_at)
        SELECT 1, gen_random_uuid(), '2026-11-01', 1, 0, i, 'd', convert_to('k' || i % 4000 + 1, 'UTF8'), '{}', '{}',
            now(), CASE WHEN i <= 4000 THEN 'retry' ELSE 'waiting' END, 1, CASE WHEN i <= 4000 THEN now() END
        FROM generate_series(1, 12000) i;
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, header_names,
            header_values, published_at, state, attempts, due_at)
        SELECT 2, gen_random_uuid(), '2026-11-01', 1, 0, i, 'd', '{}', '{}', now(), 'retry', 1,
            now() + interval '1 hour'
        FROM generate_series(1, 4000) i;
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
        SELECT 1, gen_random_uuid(), '2026-11-01'::date + i % 3, 1, 0, i, 'd' FROM generate_series(1, 12000) i;
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
        VALUES (1, '00000000-0000-0000-0000-000000000001', '2026-11-01', 2, 0, 0, 'd');
    INSERT INTO outbox.inbox_floor (group_id, born_before) SELECT g, '2026-10-01' FROM generate_series(1, 4000) g;
    INSERT INTO outbox.inbox_position (group_id, topic_id, part, next_off)
        SELECT g, t, p, 1 FROM generate_series(1, 20) g, generate_series(1, 20) t, generate_series(1, 20) p;
    INSERT INTO outbox.inbox_run (group_id, topic_id, part, off, message_id, born_on, is_retry, member)
        SELECT g, t, p, p, gen_random_uuid(), '2026-11-01', false, 'other'
        FROM generate_series(1, 20) g, generate_series(1, 20) t, generate_series(1, 20) p;
    ANALYZE outbox.inbox_parked
"""


@pytest.mark.plan(
    "outbox/sql/inbox.sql",
    "take",
    "take_batch",
    "known_batch",
    "held_keys",
    "known",
    "hold",
    "next_due",
    "lock_again",
    "lock_held_key",
    "take_out",
    "follow",
    "let_go",
    "failed_again",
    "died",
    "postpone",
)
@pytest.mark.plan(
    "outbox/sql/inbox_groups.sql",
    "count_behind",
    "positions",
    "begin",
    "store",
    "claim",
    "forget_runs",
    "begun_runs",
    "release",
    "count_run",
)
def test_statements_of_consumers_read_a_few_rows_of_full_tables(database: str) -> None:
    prepared = {}
    connections = []
    for name, (types, values) in STATEMENTS.items():
        conn = connect(database)
        connections.append(conn)
        conn.execute("SET plan_cache_mode = force_generic_plan")
        statement = name.partition(",")[0]
        text = SQL[statement] if statement in SQL else GROUPS[statement]
        for place in range(len(types), 0, -1):
            text = text.replace(f"${place}", f"%(v{place})s")
        prepared[name] = Prepared(conn, text, {f"v{place}": kind for place, kind in enumerate(types, 1)})
        conn.execute("BEGIN")
        prepared[name].run({f"v{place}": value for place, value in enumerate(values, 1)})
        conn.execute("ROLLBACK")
    for day in ("2026-11-01", "2026-11-02", "2026-11-03"):
        connections[0].execute("SELECT outbox.ensure_inbox_partition(%s)", [day])
    connections[0].execute(FILL)
    faults = []
    for conn, (name, (_, values)) in zip(connections, STATEMENTS.items(), strict=True):
        conn.execute("BEGIN")
        plan = prepared[name].explain({f"v{place}": value for place, value in enumerate(values, 1)})
        conn.execute("ROLLBACK")
        conn.close()
        scanned = [
            node["Relation Name"]
            for node in nodes(plan)
            if node["Node Type"] == "Seq Scan" and str(node["Relation Name"]).startswith("inbox")
        ]
        if rows_read(plan, "inbox") > MOST.get(name, 40) or set(scanned) - {"inbox_topic"}:
            faults.append(f"{name}: reads {rows_read(plan, 'inbox')} rows, scans {scanned}")
    assert not faults, "\n".join(faults)
