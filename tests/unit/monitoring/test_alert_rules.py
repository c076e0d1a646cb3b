"""Alert rules and the dashboard ask for metrics and labels that exist, in PromQL, and each rule has its runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import promql_parser
import pytest
import yaml

from outbox_relay.monitoring.alerts import ALERTS, rule_file
from outbox_relay.monitoring.catalogue import DATABASE, METRICS
from outbox_relay.monitoring.dashboard import WIDTH, dashboard
from outbox_relay.operations import health
from tests.support.outbox_command import outbox

DOCS = Path(__file__).resolve().parents[3] / "docs"
OF_SCRAPING = {"instance", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""
SUFFIXES = {"counter": "_total", "histogram": "_bucket", "gauge": ""}


def queries() -> Iterator[str]:
    """Yield every expression, with Grafana's variables replaced by what Grafana would write."""
    yield from (rule.expression for rule in ALERTS)
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$database", "orders|payments").replace("$__rate_interval", "1m")


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Yield what an expression reads."""
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            yield node.vector_selector
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from selectors(node.expr)
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.Call():
            for each in node.args:
                yield from selectors(each)
        case promql_parser.NumberLiteral():
            pass
        case _:
            raise AssertionError(f"not known: {type(node).__name__}")


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_reads_metrics_and_labels_of_the_catalogue(query: str) -> None:
    read = list(selectors(promql_parser.parse(query)))
    assert read or query.startswith("absent(")
    labels = {DATABASE, *OF_SCRAPING}
    for selector in read:
        name = next(each for each, one in METRICS.items() if selector.name == each + SUFFIXES[one.kind])
        labels |= set(METRICS[name].labels)
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= {DATABASE, *METRICS[name].labels}, query
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels, query


def test_a_text_names_only_labels_that_its_expression_keeps() -> None:
    for rule in ALERTS:
        kept = set(",".join(re.findall(r"by \(([^)]*)\)", rule.expression)).replace(" ", "").split(","))
        assert set(re.findall(r"\$labels\.(\w+)", rule.summary)) <= kept, rule.name


def test_the_kinds_of_problems_in_expressions_exist() -> None:
    source = Path(health.__file__).read_text(encoding="utf-8")
    for rule in ALERTS:
        for kinds in re.findall(r'kind!?[=~]+"([^"]+)"', rule.expression):
            for kind in kinds.split("|"):
                assert re.search(rf'"{kind}"', source, re.IGNORECASE), (rule.name, kind)


def test_the_rule_file_is_yaml_with_every_rule() -> None:
    (group,) = yaml.safe_load(rule_file("https://wiki.example.com"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule.name for rule in ALERTS]
    for made, rule in zip(group["rules"], ALERTS, strict=True):
        assert made["expr"] == rule.expression
        assert re.fullmatch(r"\d+[mh]", made["for"])
        assert made["labels"]["severity"] in {"page", "ticket"}
        assert made["annotations"]["summary"] == rule.summary


def test_each_rule_has_a_paragraph_of_the_runbook() -> None:
    page = (DOCS / "operations" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [rule.name for rule in ALERTS]
    for rule in ALERTS:
        path, _, anchor = rule.runbook.partition("#")
        assert (DOCS / path).exists()
        assert anchor == rule.name.lower()


def test_panels_lie_side_by_side_and_have_numbers_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_a_legend_names_every_label_by_which_its_series_differ() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"by \(([^)]*)\)", target["expr"])[-1].split(", ")) - {"le"}
            assert labels == set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])), panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_accepts_the_rule_file(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yml"
    file.write_text(rule_file("docs"), encoding="utf-8")
    ran = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_commands_print_both() -> None:
    ran = outbox("metrics", "alerts", "--runbooks", "https://wiki.example.com/")
    assert ran.code == 0, ran.err
    assert ran.out == rule_file("https://wiki.example.com")
    listed = json.loads(outbox("metrics", "alerts", "--json").out)
    assert [rule["name"] for rule in listed] == [rule.name for rule in ALERTS]
    assert json.loads(outbox("metrics", "dashboard").out) == dashboard()
