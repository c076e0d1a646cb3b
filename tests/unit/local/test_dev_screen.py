"""What `outbox dev` prints of a line that a process wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from outbox_local.dev.claim import Owner, Running, claim
from outbox_local.dev.screen import Screen, as_object, as_text


@pytest.mark.parametrize(
    ("process", "line", "shown"),
    [
        (
            "relay",
            "2026-11-26T09:49:09.299Z info relay: lanes taken epoch=1",
            "relay   | 09:49:09.299 info    lanes taken epoch=1",
        ),
        (
            "relay",
            "2026-11-26T09:49:09.299Z warning alarms: not sent",
            "relay   | 09:49:09.299 warning alarms: not sent",
        ),
        ("checker", "Traceback (most recent call last):", "checker | Traceback (most recent call last):"),
    ],
)
def test_line_for_people_names_process_time_level_and_event(process: str, line: str, shown: str) -> None:
    assert as_text(process, line).plain == shown


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('{"event": "lanes taken", "level": "info"}', {"event": "lanes taken", "level": "info"}),
        ("Error: no broker", {"event": "Error: no broker"}),
        ("12", {"event": "12"}),
    ],
)
def test_line_for_machines_is_an_object_that_names_the_process(line: str, fields: dict[str, str]) -> None:
    assert json.loads(as_object("relay", line)) == {"process": "relay", **fields}


def test_markup_and_long_lines_are_printed_as_they_are() -> None:
    out = io.StringIO()
    Screen(as_json=False, out=out).show("relay", "[bold]" + "x" * 300)
    assert out.getvalue() == "relay   | [bold]" + "x" * 300 + "\n"


def test_closed_output_is_noticed_and_raises_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    screen = Screen(as_json=False, out=Closed())
    screen.show("relay", "line")
    assert screen.broken.is_set()
    screen.show("relay", "another")


def test_second_claim_of_a_directory_reads_what_the_first_wrote(tmp_path: Path) -> None:
    directory = tmp_path / "stack"
    with claim(directory) as first:
        assert isinstance(first, Owner)
        first.write({"OUTBOX_DSN": "postgresql://"})
        with claim(directory) as second:
            assert isinstance(second, Running)
            assert second.environment == {"OUTBOX_DSN": "postgresql://"}
    with claim(directory) as third:
        assert isinstance(third, Owner)
