"""The report of a warehouse: its figures are those of the rows, and it is written however the run ends."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outbox_etl.errors import SourceError
from outbox_etl.main import parser
from outbox_etl.options.dsn import parse
from outbox_etl.report import gather
from outbox_etl.report.facts import MOST_DAYS
from outbox_etl.report.writer import ReportWriter
from tests.support.mart_rows import DAY, NEXT, Warehouse, at, event, message, publication
from tests.support.spark_marks import MARKS

pytestmark = MARKS


def fill(warehouse: Warehouse) -> None:
    """Two days: messages of 14 topics, half messages of two groups, checks, a dead one, a gap."""
    took = [0.00005, 0.0003, 0.0012, 0.0049, 0.012, 0.1, 1.5]
    messages = [
        message(n, f"t{n % 14:02}", at(DAY if n % 2 else NEXT, n), key=b"big" if n % 3 else b"small", body=b"1234",
            published_at=at(DAY if n % 2 else NEXT, n) + timedelta(seconds=took[n % 7]), partition=0, offset=n)
        for n in range(140)
    ]  # fmt: skip
    halves = [message(200 + n, "half", at(DAY), producer_group="g" if n else None) for n in range(4)]
    events = [event(200 + n, at(DAY), to_state="UNKNOWN") for n in range(4)]
    events += [event(201, at(DAY, 9), from_state="UNKNOWN", to_state="COMMITTED")]
    events += [event(202, at(DAY, 9), kind="check", answer="UNKNOWN")]
    events += [event(201, at(NEXT), from_state="COMMITTED", to_state="DEAD")]
    publications = [publication(n, at(DAY if n % 2 else NEXT, n), n) for n in range(140) if n != 70]
    warehouse.fill(10, messages=[*messages, *halves], events=events, publications=publications)
    warehouse.make(10)


def test_the_figures_are_those_of_the_rows(warehouse: Warehouse) -> None:
    fill(warehouse)
    found = gather.figures(warehouse.spark, warehouse.target)
    assert found is not None
    assert (found.first, found.last, found.earlier, found.step) == (DAY, NEXT, False, 3_600)
    assert [sum(row[name] for row in found.rate) for name in ("sent", "published")] == [144, 140]
    assert len(found.topics) == 12
    assert (found.topics[0]["everything"], found.topics[0]["all_sent"]) == (15, 144)
    assert found.histogram == {6: 20, 7: 20, 9: 20, 10: 20, 12: 20, 15: 20, 18: 20}
    assert [row["half"] for row in found.decided_by_day] == [4]
    assert {row["producer_group"]: row["half"] for row in found.decided_by_group} == {"g": 3, None: 1}
    assert (found.checks[0]["all_checks"], found.checks[0]["all_dead"]) == (1, 1)
    assert found.skew[0]["peak_key"] == b"big"
    assert {row["topic"] for row in found.latency} <= {f"t{n:02}" for n in range(14)}
    assert found.gaps[0]["everything"] == 14


def test_only_the_newest_days_are_shown_and_throughput_by_the_day(warehouse: Warehouse) -> None:
    last = DAY + timedelta(40)
    warehouse.fill(10, messages=[message(n, "a", at(DAY + timedelta(n))) for n in range(41)])
    warehouse.make(10)
    found = gather.figures(warehouse.spark, warehouse.target)
    assert found is not None
    assert (found.first, found.last, found.earlier) == (last - timedelta(MOST_DAYS - 1), last, True)
    assert (found.step, len(found.rate)) == (86_400, MOST_DAYS)


def given(command: str, report: Path, dsn: str = "") -> argparse.Namespace:
    """What the command line says."""
    return parser().parse_args([command, "--report", str(report), "--dsn", dsn, "--warehouse", "w"])


def test_a_run_that_fails_is_told_with_the_warehouse_as_it_is(warehouse: Warehouse, tmp_path: Path) -> None:
    fill(warehouse)
    path, said = tmp_path / "report.html", list[str]()
    dsn = "postgresql://etl:s3cr3t-Pa55@db:1/shop"
    told = ReportWriter(given("run", path, dsn), replace(warehouse.settings, source=parse(dsn)), said.append)
    told.read_from(warehouse.spark, warehouse.target)
    with pytest.raises(SourceError), told:
        raise SourceError("PostgreSQL: no entry for etl with s3cr3t-Pa55")
    text = path.read_text(encoding="utf-8")
    assert "What went wrong" in text
    assert "no entry for etl" in text
    assert "db:1/shop" in text
    assert "s3cr3t" not in text
    assert text.count("<svg") == 8
    assert len(text) < 1_000_000
    assert said == [f"report: {path}"]


def test_what_cannot_be_read_is_said_and_the_run_keeps_its_outcome(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.fill(10, messages=[message(1, "a", at(DAY))])  # and no marts
    path, said = tmp_path / "report.html", list[str]()
    told = ReportWriter(given("status", path), warehouse.settings, said.append)
    told.read_from(warehouse.spark, warehouse.target)
    assert told.finish({"target": "w"}) == {"target": "w", "report": str(path)}
    assert "What could not be read" in path.read_text(encoding="utf-8")
    path.unlink()
    path.mkdir()
    answer = told.finish({"target": "w"})
    assert answer["exit_code"] == 1
    assert answer["report_error"]
    assert said[-1].startswith("the report could not be written")
