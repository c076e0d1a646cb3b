"""How a demo's outcome is told: to people, to machines, and as a report that stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from outbox_local.demo.figures import measure
from outbox_local.demo.history import prove_history
from outbox_local.demo.outcome import DemoResult
from outbox_local.demo.report import write_report
from tests.support.demo_tables import tables
from tests.support.demo_world import World, world


def outcome_of(made: World) -> DemoResult:
    return DemoResult(
        flights=len(made.source),
        producers=3,
        seed=made.seed,
        sabotage=None,
        proof=made.prove(),
        figures=measure(made.entries, made.records, made.crash) if made.records else None,
        seconds=1.5,
        journals=None,
    )


@pytest.fixture
def stored() -> DemoResult:
    """A demo with a warehouse."""
    made = world(seed=2)
    history = prove_history(made.source, made.entries, tables(made), seed=made.seed)
    return replace(outcome_of(made), history=history, warehouse=Path("/flights"))


@pytest.fixture
def proven() -> DemoResult:
    return outcome_of(world())


@pytest.fixture
def failed() -> DemoResult:
    made = world()
    made.records[3] = made.records[3]._replace(key="<b>&")
    del made.records[7]
    return outcome_of(made)


def test_a_proven_demo_says_so(proven: DemoResult) -> None:
    assert proven.lines()[-1][0].startswith("PROVEN")
    assert sum("✓" in line for line, _ in proven.lines()) == len(proven.proof.claims)


def test_a_warehouse_is_told_beside_the_consumer(stored: DemoResult, tmp_path: Path) -> None:
    assert stored.holds
    assert ("the warehouse in /flights:", "") in stored.lines()
    assert stored.as_json()["warehouse"]["claims"]["key skew"]["holds"]
    write_report(tmp_path / "report.html", stored)
    assert "mart_key_skew" in (tmp_path / "report.html").read_text()


def test_a_warehouse_that_says_otherwise_fails_the_demo(stored: DemoResult) -> None:
    assert stored.history is not None
    stored.history.claims["gaps"].offend("an offset too many")
    assert not stored.holds
    assert not stored.as_json()["proven"]
    assert "NOT PROVEN: 1 offences" in stored.lines()[-1][0]


def test_a_failed_demo_names_its_offenders(failed: DemoResult) -> None:
    text = "\n".join(line for line, _ in failed.lines())
    assert "NOT PROVEN" in text
    assert "never arrived" in text
    assert "its key is '<b>&'" in text


def test_nothing_read_at_all_is_told_without_figures() -> None:
    made = world()
    made.records.clear()
    assert "NOT PROVEN" in outcome_of(made).lines()[-1][0]


def test_json_holds_claims_counts_and_figures(failed: DemoResult) -> None:
    told = json.loads(json.dumps(failed.as_json()))
    assert told["proven"] is False
    assert told["claims"]["arrived"]["broken"] == 1
    assert told["counts"]["read"] == failed.proof.read
    assert told["figures"]["steady"]["count"] > 0


@pytest.mark.parametrize("name", ["proven", "failed"])
def test_the_report_stands_alone(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "report.html"
    write_report(path, request.getfixturevalue(name))
    page = path.read_text()
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 3
    for chart in charts:
        ElementTree.fromstring(chart)
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert "<b>" not in page

    class Tags(HTMLParser):
        opened: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.opened.pop() == tag

    reader = Tags()
    reader.feed(page)
    assert reader.opened == []
