"""Named statements: what a file may hold, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from outbox.statements import Statements

Load = Callable[[str], Statements]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)

    def write_and_load(text: str) -> Statements:
        (tmp_path / "some.sql").write_text(text, encoding="utf-8")
        return Statements("some/some.sql")

    return write_and_load


def test_a_statement_is_found_by_name_without_its_explanation(load: Load) -> None:
    found = load(
        "-- About this file.\n\n-- name: one\n-- First.\n-- Still.\nSELECT 1;\n\n-- name: two\n-- Second.\nSELECT 2\n"
    )
    assert dict(found) == {"one": "SELECT 1", "two": "SELECT 2"}


def test_comments_inside_a_statement_stay(load: Load) -> None:
    found = load("-- name: one\n-- Why.\nSELECT 1\n-- inside\nFROM x\n")
    assert found["one"] == "SELECT 1\n-- inside\nFROM x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: one\nSELECT 1\n", "explanation"),
        ("-- name: one\n-- Only words.\n", "SQL"),
        ("-- name: one\n-- A.\nSELECT 1\n-- name: one\n-- B.\nSELECT 2\n", "twice"),
    ],
)
def test_a_block_that_is_not_whole_is_refused(load: Load, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load(text)


def test_an_unknown_name_says_which_there_are(load: Load) -> None:
    found = load("-- name: one\n-- First.\nSELECT 1\n")
    with pytest.raises(KeyError, match=r"no statement 'two'; it has one"):
        found["two"]


def test_every_sql_file_of_the_service_is_readable() -> None:
    for package in ("outbox", "outbox_relay", "outbox_local"):
        root = Path(str(resources.files(package)))
        files = sorted(root.rglob("*.sql"))
        assert files
        for file in files:
            assert len(Statements(f"{package}/{file.relative_to(root)}")) > 0, file
