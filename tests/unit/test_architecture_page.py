"""docs/concepts/architecture.md describes the code as it is: its drawings are current, its paths exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.drawing import PAGE, drawn, processes_of
from tests.support.rooms import PACKAGES, ROOT

pytestmark = pytest.mark.xdist_group("sources")

PATH = re.compile(r"`((?:outbox|relay|local|spark_etl|migrations|tests|docs|bench)/[\w./-]*)`")


def test_the_drawings_are_made_from_the_sources() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert drawn(text) == text, "run .venv/bin/python -m tests.support.drawing --write"


def test_each_file_of_statements_belongs_to_a_process() -> None:
    found = [path for package in ("outbox", "relay/outbox_relay") for path in (ROOT / package).rglob("*.sql")]
    assert found
    homeless = sorted(path.relative_to(ROOT).as_posix() for path in found if not processes_of(path))
    assert not homeless, f"add to PROCESSES of tests/support/drawing.py which process runs: {homeless}"


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.name))
def test_each_path_on_the_page_exists(page: Path) -> None:
    named = PATH.findall(page.read_text(encoding="utf-8"))
    assert len(named) > 80, "the paths were read"
    missing = sorted({path for path in named if not (ROOT / path).exists()})
    assert not missing, f"{page.name} names what is not there (moved? then name its new place): {missing}"


def test_each_room_that_is_a_folder_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rooms = [
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        if package != "migrations/outbox_migrations"
        for path in sorted((ROOT / package).glob("*/*.py"))
        if path.name == "__init__.py"
    ]
    assert rooms
    missing = [room for room in rooms if f"`{room}/`" not in text]
    assert not missing, f"describe each in one line of {PAGE.name}: {missing}"
