"""The comparison with other outboxes: rows of a peer are as its own writer has them, and what the table shows."""

from __future__ import annotations

import json
import re
from typing import Any, cast
from uuid import UUID

import pytest
from faststream_outbox.client import _build_insert_stmts
from faststream_outbox.envelope import _encode_payload
from sqlalchemy.dialects import postgresql

from bench.faststream_outbox.app import application
from bench.faststream_outbox.side import STATEMENTS, TUNED, FaststreamOutbox
from bench.faststream_outbox.table import KEY, OUTBOX
from bench.load.generator import faststream_headers
from bench.outboxes.compare import HELD, Found, _cells, _floors, _section
from bench.outboxes.sides import Side
from bench.plan import Bench, Plan

DRAINED = {
    "messages": 200_000.0, "rate": 50_000.0, "warm_rate": 60_000.0, "peak_mb": 90.0,
    "publisher": 7.0, "postgres": 5.0, "kafka": 8.0,
}  # fmt: skip
ON_TIME: dict[str, Any] = {"before_commit_ms": [2.0, 3.0, 9.0], "cores": {"publisher": 0.1}}
LATER: dict[str, Any] = {"before_commit_ms": [4.0, 5.0, 11.0], "cores": {"publisher": 0.3}}
MISSING = {"missing": 1_234, "count": 9_000}


def test_a_row_is_written_by_the_statement_of_faststream_outbox() -> None:
    own = _build_insert_stmts(OUTBOX, "outbox_outbox")[None, False, True].compile(
        dialect=postgresql.dialect(paramstyle="format"), column_keys=("queue", "payload", "headers")
    )
    text = re.sub(r"::\w+| AS pg_notify_1", "", str(own)).replace("pg_notify(%s", "pg_notify('outbox_outbox'")
    assert STATEMENTS["send"].split() == text.split()
    assert own.params["param_1"] == "outbox_outbox"


def test_its_rows_have_the_headers_that_it_gives_them() -> None:
    _, headers = _encode_payload(
        b"{}", headers={"source": "bench", KEY: "order-1"}, correlation_id=str(UUID(int=7))
    )
    assert json.loads(faststream_headers("order-1", UUID(int=7))) == headers


def test_its_application_has_a_subscriber_with_these_options_for_each_topic() -> None:
    app = application("postgresql://u@127.0.0.1:1/d", "127.0.0.1:1", ["a", "b"], TUNED)
    assert app.broker is not None
    configs = [subscriber._config for subscriber in app.broker.subscribers]  # type: ignore[attr-defined]
    assert sorted(config.queues for config in configs) == [["a"], ["b"]]
    assert {name: getattr(configs[0], name) for name in TUNED} == TUNED
    pool = app.broker.config.broker_config.engine.pool
    assert pool.size() == 2 * (1 + TUNED["max_workers"]), (
        "it keeps a connection for each worker and one to fetch"
    )


def test_a_partial_drain_has_the_number_published_in_brackets() -> None:
    assert _cells(200_000, [500], Found([DRAINED]))[0] == "50,000"
    assert _cells(200_000, [500], Found([DRAINED | {"messages": 2_600.0}]))[0] == "50,000 (2,600)"


def test_a_latency_not_measured_is_empty_and_missing_messages_are_counted() -> None:
    found = Found([DRAINED], {200: [ON_TIME, LATER], 500: [ON_TIME, MISSING]}, [{"share": 0.5}])
    assert _cells(200_000, [200, 500, 1_500], found)[-5:] == [
        "3.0 / 10.0",
        "1,234 of 9,000 missing",
        "",
        "0.10",
        "0.50",
    ]


def test_a_late_peer_has_no_floor_and_a_late_relay_fails_the_benchmark() -> None:
    ours = Found([DRAINED], {500: [ON_TIME, LATER]})
    late = Found([DRAINED | {"warm_rate": 20_000.0}], {500: [ON_TIME, MISSING]})
    floors = _floors(ours, late, HELD[1])
    assert [(floor.what, floor.measured) for floor in floors] == [
        ("drain, second halves, next to Debezium tuned, snapshot held", 3.0),
        ("relay CPU a message at 500 tx/s, snapshot held", 0.4),
    ]
    assert len(_floors(ours, ours, HELD[0])) == 4
    with pytest.raises(RuntimeError, match="at 500 transactions/s of the relay: 1,234 of 9,000 missing"):
        _floors(late, ours, HELD[0])


def test_all_sides_are_in_one_table_with_and_without_a_snapshot_held() -> None:
    sides = [Side(1), Side(2), FaststreamOutbox("Debezium, tuned", TUNED, has_latency=True)]
    plan = Plan(compared_rates=(500,))
    found = {
        side.name + held: Found([DRAINED], {500: [ON_TIME]} if side.has_latency else {}, [])
        for side in sides
        for held in HELD
    }
    section = _section(Bench(cast("Any", None), plan, False, print), sides, found)
    (table,) = section.tables
    assert [row[0] for row in table.rows] == [
        "1 relay",
        "1 relay, snapshot held",
        "2 relays",
        "2 relays, snapshot held",
        "Debezium, tuned",
        "Debezium, tuned, snapshot held",
    ]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "max_workers 32" in section.method
    assert json.loads(json.dumps(section.figures))["1 relay"]["latency"] == {"500": [ON_TIME]}
    assert {floor.what.endswith(HELD[1]) for floor in section.floors} == {True, False}
