"""Output: aligned and colourless in a pipe, harmless on a terminal, exact for machines."""

from __future__ import annotations

import json
import sys
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest

from outbox_relay.cli import output
from outbox_relay.operations import filters
from outbox_relay.text import formatting


def test_a_plain_table_is_aligned_without_colours_or_trailing_space(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.table(["name", "count"], [("a", 1), ("longer", 1234), (None, None)], right=("count",))
    assert capsys.readouterr().out == "NAME    COUNT\na           1\nlonger   1234\n-           -\n"


def test_control_characters_are_shown_as_escapes() -> None:
    assert formatting.cell("\x1b[31mred\x1b[0m\n\x07") == "\\x1b[31mred\\x1b[0m\\n\\x07"
    assert formatting.cell("中文 é") == "中文 é"


@pytest.mark.parametrize(
    ("value", "people", "machines"),
    [
        (None, None, None),
        (b"o-17", "o-17", "o-17"),
        ("订单".encode(), "订单", "订单"),
        (b"\xff\x00", "base64:/wA=", {"base64": "/wA="}),
        (b"\x1b[2J", "base64:G1sySg==", {"base64": "G1sySg=="}),
        (b"", "", ""),
    ],
)
def test_bytes_are_text_when_printable_and_base64_with_a_mark_when_not(
    value: bytes | None, people: str | None, machines: object
) -> None:
    assert formatting.bytes_for_people(value) == people
    assert formatting.bytes_for_json(value) == machines


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (-3, "0.0 s"),
        (3.25, "3.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (18_120, "5 h 2 min"),
        (356_400, "4 d 3 h"),
        (34_560_000, "1 y 35 d"),
        (4.5e9, "more than 100 years"),
    ],
)
def test_durations_show_their_two_largest_units(value: float | None, shown: str) -> None:
    assert formatting.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (3.25, "3.2 s"), (200, "3 min"), (356_400, "4 d"), (34_560_000, "1 y")]
)
def test_a_narrow_column_shows_a_duration_s_largest_unit(value: float | None, shown: str) -> None:
    assert formatting.seconds(value, units=1) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (512, "512 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_in_binary_units(value: float | None, shown: str) -> None:
    assert formatting.size(value) == shown


def test_json_carries_times_ids_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    identity = uuid.uuid4()
    output.emit_json({"at": datetime(2026, 1, 2, tzinfo=UTC), "id": identity, "key": b"\xff", "name": "名"})
    text = capsys.readouterr().out
    assert "名" in text
    assert json.loads(text) == {
        "at": "2026-01-02T00:00:00.000000Z",
        "id": str(identity),
        "key": {"base64": "/w=="},
        "name": "名",
    }


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 22, 13, 5, 7, 249_876, tzinfo=UTC),
        datetime(2026, 11, 22, 15, 5, 7, 249_876, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_every_time_is_shown_in_utc_with_its_zone(value: datetime) -> None:
    assert formatting.cell(value) == formatting.moment(value) == "2026-11-22 13:05:07.249Z"
    assert formatting.rfc3339(value) == "2026-11-22T13:05:07.249876Z"


def test_a_time_that_is_shown_can_be_given_to_an_option() -> None:
    value = datetime(2026, 11, 22, 13, 5, 7, 249_000, tzinfo=UTC)
    for shown in (formatting.moment(value), formatting.rfc3339(value)):
        assert filters.read_moment("--since", shown) == value


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1234, "1,234 messages")]
)
def test_one_of_something_is_singular(number: int, shown: str) -> None:
    assert formatting.many(number, "message") == shown


def test_heads_of_tables_are_alike_at_a_terminal_and_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.table(["from id"], [(1,)])
    piped = capsys.readouterr().out.splitlines()[0].strip()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.table(["from id"], [(1,)])
    assert piped == "FROM ID"
    assert piped in capsys.readouterr().out


def test_pairs_leave_out_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    output.pairs([("a", 1), ("gone", None), ("longer", False)])
    assert capsys.readouterr().out == "a       1\nlonger  no\n"
