"""Query plans as PostgreSQL really runs them: prepared early, kept, and looked at later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import sql

from tests.support.plain_inserts import Connection

Plan = dict[str, Any]

FILL_HALVES = """
    INSERT INTO outbox.message (topic, key, body, producer_group, state, deliver_at)
    SELECT 'payments', convert_to('k' || i, 'UTF8'), 'x', 'orders',
           CASE WHEN i %% 3 = 0 THEN 'COMMITTED' ELSE 'UNKNOWN' END,
           CASE WHEN i %% 3 = 0 THEN now() + interval '1 year' END
    FROM generate_series(1, %s) i
"""
"""Write so many messages: two of three undecided half messages, the others delayed by a year."""


class Prepared:
    """A statement with named values, prepared now and explained as often as it is asked for."""

    def __init__(self, conn: Connection, statement: sql.Composed | str, types: Mapping[str, str]) -> None:
        text = statement.as_string(conn) if isinstance(statement, sql.Composed) else statement
        self._conn = conn
        self._names = list(types)
        numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${self._names.index(found[1]) + 1}", text).replace(
            "%%", "%"
        )
        conn.execute(f"PREPARE watched {_list(list(types.values()))} AS {numbered}".encode())

    def _call(self, values: Mapping[str, Any]) -> str:
        given = [sql.Literal(values[name]).as_string(self._conn) for name in self._names]
        return f"EXECUTE watched {_list(given)}"

    def run(self, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute it, which makes the generic plan the first time."""
        return self._conn.execute(self._call(values).encode()).fetchall()

    def explain(self, values: Mapping[str, Any]) -> Plan:
        """Execute it and return the top node of the plan, with what really happened."""
        row = self._conn.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {self._call(values)}".encode()
        ).fetchone()
        assert row is not None
        plan: Plan = row[0][0]["Plan"]
        return plan


def _list(parts: list[str]) -> str:
    return f"({', '.join(parts)})" if parts else ""


def nodes(plan: Plan) -> Iterator[Plan]:
    """All nodes of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plan: Plan, prefix: str) -> list[Plan]:
    """The nodes that read tables whose names begin so, and were executed."""
    return [
        node
        for node in nodes(plan)
        if str(node.get("Relation Name", "")).startswith(prefix) and node["Actual Loops"] > 0
    ]


def rows_read(plan: Plan, prefix: str) -> int:
    """Rows that were read of tables whose names begin so: returned, or thrown away."""
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes(plan)
        if str(node.get("Relation Name", "")).startswith(prefix) and "Scan" in node["Node Type"]
    )


def removed(plan: Plan) -> int:
    """Most rows that any node read and threw away."""
    return max(
        int(node.get(name, 0)) * int(node["Actual Loops"])
        for node in nodes(plan)
        for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
    )


def buffers(plan: Plan) -> int:
    """Pages touched."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
