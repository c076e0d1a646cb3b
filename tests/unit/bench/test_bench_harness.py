"""The benchmarks' harness: percentiles, paired ratios, CPU of processes that come and go, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from bench.harness.cpu import Meter, peak_bytes
from bench.harness.report import Floor, Report, Section, Table
from bench.harness.statistics import percentile, ratio
from bench.load.raw import bare_producer

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 50), (95, 95), (99, 99), (100, 100)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: int) -> None:
    assert percentile(range(1, 101), percent) == value


def test_a_percentile_of_few_values_is_not_below_its_rank() -> None:
    assert percentile([1, 2, 3], 99) == 3
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_ratio_is_taken_within_rounds() -> None:
    assert ratio([50, 500, 5], [100, 1000, 10]) == 0.5


def test_cpu_of_children_counts_while_they_run_and_after_they_ended() -> None:
    meter = Meter({"here": os.getpid()})
    child = subprocess.Popen([sys.executable, "-c", BUSY + "print('done', flush=True)\ninput()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    running = meter.seconds()["here"]
    child.communicate(b"\n")
    meter.wait_for_children()
    assert 0.25 <= running <= meter.seconds()["here"]


def test_peak_memory_is_at_least_what_was_held_once() -> None:
    held = bytearray(b"x" * 30_000_000)
    assert peak_bytes(os.getpid()) > len(held)


def test_the_bare_producer_takes_the_relays_settings() -> None:
    assert isinstance(bare_producer("127.0.0.1:1"), Producer)


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "met"),
    [(5.0, 5.0, False, True), (5.1, 5.0, False, False), (0.65, 0.65, True, True), (0.64, 0.65, True, False)],
)
def test_a_floor_is_met_or_missed(measured: float, limit: float, at_least: bool, met: bool) -> None:
    assert Floor("figure", measured, limit, "ms", at_least=at_least).met is met


def test_the_report_says_the_same_to_people_and_machines() -> None:
    section = Section("drain", "Draining", "How.", [Table("Rates", ["", "messages/s"], [["relay", "123"]])])
    section.floors.append(Floor("drain", 123, 100_000, "messages/s", at_least=True))
    report = Report({"CPU": "4 cores"}, [section])
    text = report.markdown()
    assert "| relay |        123 |" in text
    assert "| drain  | 123 messages/s | ≥ 100,000 messages/s |  NO |" in text
    content = json.loads(report.json())
    assert content["machine"] == {"CPU": "4 cores"}
    assert content["floors"][0]["met"] is False


def test_a_section_of_a_benchmark_that_exists_no_more_leaves_the_report() -> None:
    earlier = Report({"CPU": "4 cores"}, [Section(name, name, "How.") for name in ("drain", "gone", "send")])
    both = Report({"CPU": "2 cores"}, [Section("send", "New", "How.")]).into(
        earlier.json(), ["send", "drain"]
    )
    assert [(section.name, section.title) for section in both.sections] == [
        ("send", "New"),
        ("drain", "drain"),
    ]
    assert both.machine == {"CPU": "4 cores"}
