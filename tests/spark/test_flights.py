"""The flights of the demo in the warehouse: history and marts say what the source and the producers' journals say.

What is compared comes from the packaged flights and from the producers; the outbox's own tables are asked nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from outbox_local.demo.flights import read_flights
from outbox_local.demo.history import prove_history
from outbox_local.demo.journal import FlightOutcome
from outbox_local.demo.tables import Tables
from tests.support.flight_producers import SEED, Office
from tests.support.flight_tables import WRECKS
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.small_spark import SMALL
from tests.support.warehouse_readers import (
    Look,
    by_duckdb,
    by_duckdb_over_pyiceberg,
    by_pyiceberg,
    duckdb_parquet,
    iceberg_arrow,
)

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

FLIGHTS = 4_000
CLOCK_S = 0.002
"""One machine, one clock; journals round to a microsecond, and a clock may be read twice."""
TABLES = ("message_history", "mart_throughput", "mart_latency", "mart_key_skew", "mart_gaps")
LIMIT_S = 300


def etl_run(dsn: str, warehouse: Path, form: str) -> int:
    """Run `outbox etl run` as an operator does; answer how many messages it wrote."""
    words = ["-m", "outbox_relay", "etl", "run", "--json", "--warehouse", str(warehouse), "--format", form]
    done = subprocess.run(
        [sys.executable, *words, *SMALL],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "OUTBOX_DSN": dsn},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout)["messages"])


def seen(look: Look, warehouse: Path) -> Tables:
    """What one kind of reader finds in a warehouse."""
    return Tables(*(look(warehouse, table) for table in TABLES))


def test_history_and_marts_are_those_of_the_source_whoever_reads_them(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topics = (make_topic(), make_topic())
    office = Office(database, topics, read_flights(FLIGHTS), tmp_path)
    targets = {form: tmp_path / form for form in ("iceberg", "parquet")}
    with RelayProcess(database, bootstrap_servers) as relay:
        with office.entering(slice(0, 1_500)):
            relay.wait_until_running()
        with office.entering(
            slice(1_500, 2_500), rate=25
        ):  # (an aircraft's transactions meet the export's reads)
            first = {form: etl_run(database, where, form) for form, where in targets.items()}
        relay.kill()
    with RelayProcess(database, bootstrap_servers) as relay, connect(database) as conn:
        with office.entering(slice(2_500, FLIGHTS)):
            relay.wait_until_running()
        wait_published(conn, seconds=120)
        relay.stop()
    second = {form: etl_run(database, where, form) for form, where in targets.items()}

    outcomes = Counter(entry.outcome for topic in topics for entry in office.entries(topic))
    assert outcomes[FlightOutcome.ROLLED_BACK] > FLIGHTS * 0.02
    for form in targets:
        assert 0 < first[form] < outcomes[FlightOutcome.COMMITTED]
        assert second[form] > 0
    whole = prove_everything(office, targets)
    skew_of_the_source(office, targets)
    for name, (wreck, claim) in WRECKS.items():
        verdict = judged(office, topics[0], wreck(whole.of(topics[0])))
        assert not verdict.claims[claim].holds, f"{name}: nobody noticed"


def prove_everything(office: Office, targets: dict[str, Path]) -> Tables:
    """Prove what each kind of reader finds; answer what the last one found."""
    found = Tables([], [], [], [], [])
    for look, form in (
        (by_pyiceberg, "iceberg"),
        (by_duckdb_over_pyiceberg, "iceberg"),
        (by_duckdb, "parquet"),
    ):
        found = seen(look, targets[form])
        assert sum(len(found.of(topic).history) for topic in office.topics) == len(found.history)
        for topic in office.topics:
            verdict = judged(office, topic, found.of(topic))
            assert verdict.holds, [(form, each) for each in verdict.claims.values() if not each.holds]
            assert all(claim.checked for claim in verdict.claims.values())
    return found


def judged(office: Office, topic: str, tables: Tables) -> Any:
    """The proof of one topic."""
    return prove_history(office.of(topic), office.entries(topic), tables, seed=SEED, clocks_s=CLOCK_S)


def skew_of_the_source(office: Office, targets: dict[str, Path]) -> None:
    """The tail numbers, counted by a query over the history: each as often as in the source."""
    query = "SELECT topic, decode(key) AS tail, count(*) AS flights FROM history GROUP BY ALL"
    committed = {
        entry.flight for topic in office.topics for entry in office.entries(topic)
        if entry.outcome is FlightOutcome.COMMITTED
    }  # fmt: skip
    source = {
        topic: Counter(flight.aircraft for flight in office.of(topic) if flight.number in committed)
        for topic in office.topics
    }
    for history in (
        iceberg_arrow(targets["iceberg"], "message_history"),
        duckdb_parquet(targets["parquet"], "message_history").to_arrow_table(),
    ):
        with duckdb.connect() as conn:
            rows = conn.register("history", history).execute(query).fetchall()
        assert {topic: Counter({tail: n for t, tail, n in rows if t == topic}) for topic in source} == source
