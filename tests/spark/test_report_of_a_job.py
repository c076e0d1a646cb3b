"""The report that the job writes: asked for on its command line, refused before Spark starts, told in its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outbox_etl.main import main
from tests.support.export_runs import jars
from tests.support.mart_rows import QUICKEST
from tests.support.plain_inserts import connect, decide, insert
from tests.support.publications import positions, record, snapshot
from tests.support.spark_marks import MARKS

pytestmark = MARKS


def job(command: str, dsn: str, warehouse: Path, report: Path, *more: str) -> int:
    """Run the job in this process, with Parquet tables, and a report."""
    small = [option for name, value in QUICKEST.items() for option in ("--spark", f"{name}={value}")]
    options = ["--dsn", dsn, "--warehouse", str(warehouse), "--format", "parquet", "--master", "local[2]"]
    options += ["--driver-memory", "1g", "--partitions", "1", "--jars", ",".join(jars()), *small]
    return main([command, *options, "--report", str(report), *more])


def test_a_report_that_cannot_be_written_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*args: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("outbox_etl.session.start", start)
    dsn = "postgresql://nobody@localhost:1/none"
    assert job("run", dsn, tmp_path / "warehouse", tmp_path / "nowhere" / "report.html") == 1
    assert "--report" in capsys.readouterr().err


def test_a_run_and_a_reconcile_that_finds_a_loss_are_told(
    database: str, bootstrap_servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"never-made-{tmp_path.name}"
    with connect(database) as conn:
        ids = [insert(conn, topic, f"k{number % 3}", f"body {number}") for number in range(5)]
        half = insert(conn, topic, "h", "half", state="UNKNOWN", producer_group="g")
        assert decide(conn, half, "ROLLED_BACK") == 1
        record(conn, positions(conn), seen=snapshot(conn), batch=1)  # as if they were in Kafka
    report, warehouse = tmp_path / "report.html", tmp_path / "warehouse"
    assert job("run", database, warehouse, report, "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(report)
    text = report.read_text(encoding="utf-8")
    assert "Sent: 6 messages; published: 5." in text
    assert topic in text
    assert job("reconcile", database, warehouse, report, "--bootstrap-servers", bootstrap_servers) == 1
    text = report.read_text(encoding="utf-8")
    assert all(f"<code>{message}</code>" in text for message in ids)
    assert "5 problems: not proven" in text
    assert "Certificates" in text
