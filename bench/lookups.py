"""Look-ups: how long an operator's search takes in a long history, by what is known of the message."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, percentile
from bench.load.history import History
from bench.plan import PARTITIONS, SCALE, Bench
from outbox.statements import Statements
from outbox_relay.operations.filters import Filters
from outbox_relay.operations.messages import life, search

STATEMENTS = Statements("bench/sql/lookups.sql")
LIMIT = 20
"""Messages of a page, the default of `outbox message ls`."""
SECOND = timedelta(seconds=1)
RARE = "key of one message"
FLOORS = {"key": 50.0, RARE: 50.0, "index key": 50.0, "time": 50.0}
"""Milliseconds that the median may take, by what is known."""
METHOD = (
    "The history of the export's benchmark, with an index key for each message. `search` as `outbox message ls` calls "
    "it ({limit} messages, newest first), and `life` as `outbox message show` does, on one session with nothing else "
    "to do. Up to {times} searches for messages drawn from the whole history; milliseconds. A key has one "
    "ten-thousandth of all messages, an index key one message, as the key of the oldest; time: a second of the history."
)
Known = dict[str, Any]
WAYS: dict[str, Callable[[Known], Filters]] = {
    "id": lambda row: Filters(id=row["id"]),
    "message id": lambda row: Filters(message_id=row["message_id"]),
    "key": lambda row: Filters(key=row["key"]),
    RARE: lambda row: Filters(key=row["key"]),
    "index key": lambda row: Filters(index_key=row["index_keys"][0]),
    "topic and key": lambda row: Filters(topic=row["topic"], key=row["key"]),
    "time": lambda row: Filters(since=row["born_at"], until=row["born_at"] + SECOND),
    "tag": lambda row: Filters(tag=row["tags"][0]),
}


def run(bench: Bench) -> Section:
    """Search histories of growing size."""
    times = bench.plan.lookups
    section = Section("lookups", "Looking messages up", METHOD.format(limit=LIMIT, times=times))
    sizes = [bench.plan.lookup_rows, *([SCALE.lookup_rows] if bench.scale else [])]
    table = Table("Milliseconds, median (p99)", ["", *(f"{size:,} messages" for size in sizes)])
    cells: dict[str, list[str]] = {}
    with bench.servers.database() as dsn:
        topic = bench.servers.topic(PARTITIONS)
        with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as conn:
            rare = conn.execute(STATEMENTS["rare"], {"topic": topic}).fetchone() or {}
        history = History(bench.servers, dsn, topic, relayed=0, has_index_keys=True)
        for size in sizes:
            bench.say(f"writing up to {size:,} messages")
            history.grow(size)
            for name, taken in _searched(dsn, times, rare).items():
                middle, last = median(taken), percentile(sorted(taken), 99)
                cells.setdefault(name, []).append(f"{middle:.1f} ({last:.1f})")
                section.figures[f"{name}, {size} messages"] = taken
                if size == sizes[-1] and name in FLOORS:
                    what = f"look-up by {name} of {size:,}"
                    section.floors.append(Floor(what, middle, FLOORS[name], "ms"))
            bench.say(", ".join(f"{name} {shown[-1]} ms" for name, shown in cells.items()))
    table.rows += [[name, *shown] for name, shown in cells.items()]
    section.tables.append(table)
    return section


def _searched(dsn: str, times: int, rare: Known) -> dict[str, list[float]]:
    """Milliseconds of each search, by what was known.

    Raises:
        RuntimeError: a search did not find its message.
    """
    found: dict[str, list[float]] = {}
    with psycopg.connect(dsn, autocommit=True) as conn:
        known = _known(conn, times)
        for name, filters in WAYS.items():
            for row in [rare] * times if name == RARE else known:
                began = time.perf_counter()
                rows = search(conn, filters(row), LIMIT)
                found.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
                if not rows or (len(rows) < LIMIT and row["id"] not in {each["id"] for each in rows}):
                    raise RuntimeError(f"the search by {name} did not find message {row['id']}")
        for row in known:
            began = time.perf_counter()
            shown = life(conn, Filters(id=row["id"]))
            found.setdefault("all of one message", []).append((time.perf_counter() - began) * 1e3)
            if shown is None:
                raise RuntimeError(f"there is no message {row['id']}")
    return found


def _known(conn: psycopg.Connection[Any], times: int) -> list[Known]:
    """Draw messages from the whole history, the same ones in each run."""
    draw = random.Random(4711)
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        lowest, highest = conn.execute(STATEMENTS["span"]).fetchone() or (1, 1)
        ids = [draw.randint(lowest, highest) for _ in range(times)]
        return cursor.execute(STATEMENTS["known"], {"ids": ids}).fetchall()
