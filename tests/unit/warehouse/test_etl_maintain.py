"""What maintenance of the warehouse is asked for, and how its answer is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox_etl.errors import SettingsError
from outbox_etl.main import parser
from outbox_etl.warehouse.maintain_request import (
    MaintenanceRequest,
    MaintenanceResult,
    TableResult,
    requested,
)
from outbox_relay.cli.etl.render import show


def asked(*arguments: str) -> MaintenanceRequest:
    """What these options ask for."""
    return requested(parser().parse_args(["maintain", *arguments]))


def test_a_week_is_kept_unless_something_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked() == MaintenanceRequest(timedelta(days=7), timedelta(days=3))
    assert asked("--keep", "30", "--orphans=2") == MaintenanceRequest(timedelta(days=30), timedelta(days=2))
    monkeypatch.setenv("OUTBOX_ETL_KEEP", "14")
    assert asked().keep == timedelta(days=14)


@pytest.mark.parametrize("option", ["--keep", "--orphans"])
@pytest.mark.parametrize("days", ["0", "-1", "3651"])
def test_files_of_today_are_never_old_enough(option: str, days: str) -> None:
    with pytest.raises(SettingsError, match=rf"{option} {days} is out of range: 1 to 3650 days"):
        asked(f"{option}={days}")


def test_the_answer_says_of_each_table_what_became_of_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    table = TableResult("message_history", 1_200, 3, 400_000_000, expired=2_016, deleted=1_234, orphans=5)
    done = MaintenanceResult("/data/warehouse", (table,), 2_016, 61.5)
    show("maintain", done.as_dict())
    shown = capsys.readouterr().out
    for part in ("message_history", "1200", "400000000", "2016", "1234", "/data/warehouse", "1 min 1 s"):
        assert part in shown.replace(",", ""), shown
    assert "1200 files, now 3" in done.lines()[1]
