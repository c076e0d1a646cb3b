"""--report: named once for the command and the job, and a run that fails before Spark is there is told too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from outbox_etl.errors import SettingsError
from outbox_etl.main import parser
from outbox_etl.options.settings import from_arguments
from outbox_etl.report.writer import ReportWriter
from outbox_relay.warehouse import child, prepare
from tests.support.outbox_command import outbox

DSN = "postgresql://etl:s3cr3t-Pa55@localhost:5432/shop"
GIVEN = ("--warehouse", "/data/warehouse", "--dsn", DSN)


@pytest.mark.parametrize("command", ["run", "backfill", "marts", "status", "reconcile"])
def test_the_option_reaches_the_job(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    def run(
        arguments: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]
    ) -> child.Ended:
        reached.extend(arguments)
        return child.Ended(0, "{}\n")

    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(prepare, "require_packages", lambda *, fetching: None)
    monkeypatch.setattr(prepare, "java_home", lambda report: None)
    monkeypatch.setattr(prepare, "jars", lambda given, report: "/cache/a.jar")
    more = ("--bootstrap-servers", "k:9092") if command == "reconcile" else ()
    ran = outbox("etl", command, *GIVEN, *more, "--report", "report.html")
    assert ran.code == 0, ran.err
    assert parser().parse_args(reached).report == "report.html"


def test_the_environment_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_ETL_REPORT", "report.html")
    assert parser().parse_args(["run"]).report == "report.html"


def test_a_run_that_fails_before_spark_is_there_is_told(tmp_path: Path) -> None:
    path, said = tmp_path / "report.html", list[str]()
    given = parser().parse_args(["run", *GIVEN, "--report", str(path)])
    with pytest.raises(SettingsError), ReportWriter(given, from_arguments(given), said.append):
        raise SettingsError("Spark does not start, and s3cr3t-Pa55 is no help")
    text = path.read_text(encoding="utf-8")
    assert "Spark does not start, and *** is no help" in text
    assert "the run did not come so far" in text
    assert "localhost:5432/shop" in text
    assert said == [f"report: {path}"]


def test_without_the_option_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTBOX_ETL_REPORT", raising=False)
    monkeypatch.chdir(tmp_path)
    given = parser().parse_args(["run", *GIVEN])
    with ReportWriter(given, from_arguments(given), print) as told:
        assert told.finish({"target": "w"}) == {"target": "w"}
    assert not list(tmp_path.iterdir())


def test_an_interruption_is_no_failure_to_tell(tmp_path: Path) -> None:
    given = parser().parse_args(["run", *GIVEN, "--report", str(tmp_path / "report.html")])
    with pytest.raises(KeyboardInterrupt), ReportWriter(given, from_arguments(given), print):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
