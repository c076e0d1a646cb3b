"""The demo's figures: rates, latencies and recovery from small journals that can be worked out by hand."""

from __future__ import annotations

import json

import pytest

from outbox_local.demo.chart import bars, chart
from outbox_local.demo.figures import Figures, measure
from outbox_local.demo.journal import Crash, Entry, FlightOutcome, Record


def entry(flight: int, ending: float, *, producer: int = 0, aircraft: str | None = None) -> Entry:
    name = aircraft or f"N{flight}"
    return Entry(producer, flight, name, 1, FlightOutcome.COMMITTED, ending - 0.02, ending, ending + 0.01)


def record(flight: int, published: float, received: float) -> Record:
    return Record(0, flight, int(published * 1000), received, "N", json.dumps({"row": flight}), ())


@pytest.fixture
def figures() -> Figures:
    """A hundred flights, ten a second, each 5 ms on its way; the relay is away for nearly two seconds."""
    entries = [entry(number, number / 10) for number in range(1, 101)]
    records = []
    for number in range(1, 101):
        sent = number / 10
        published = 5.95 if 4.0 <= sent < 5.95 else sent + 0.003
        records.append(record(number, published, published + 0.002))
    records.insert(39, record(39, 5.95, 5.951))
    return measure(entries, records, Crash(4.0))


def test_latency_leaves_out_what_the_kill_held_up(figures: Figures) -> None:
    assert figures.held_up == 20
    assert figures.steady is not None
    assert figures.steady.count == 80
    assert [figures.steady.p50, figures.steady.p99] == pytest.approx([5.0, 5.0])


def test_recovery_is_the_time_from_the_kill_to_the_next_relays_first_message(figures: Figures) -> None:
    assert figures.recovery_s == pytest.approx(1.951)


def test_rates_are_over_the_time_from_first_to_last(figures: Figures) -> None:
    assert figures.committed_per_s == pytest.approx(100 / 9.93)
    assert figures.read_per_s == pytest.approx(100 / 9.9, rel=1e-3)


def test_the_course_counts_everything_once(figures: Figures) -> None:
    assert sum(figures.course.read) == sum(figures.course.committed) == 100
    assert max(figures.course.read) >= 20


def test_percentiles_are_values_that_occurred() -> None:
    entries = [entry(number, 1.0) for number in range(1, 101)]
    records = [record(number, 1.0, 1.0 + number / 1000) for number in range(1, 101)]
    latency = measure(entries, records, None).steady
    assert latency is not None
    found = [latency.p50, latency.p95, latency.p99, latency.highest]
    assert found == pytest.approx([50, 95, 99, 100])


def test_contention_counts_overlaps_of_different_producers_for_one_aircraft() -> None:
    entries = [
        entry(1, 1.000, producer=0, aircraft="A"),
        entry(2, 1.005, producer=1, aircraft="A"),  # overlaps the first
        entry(3, 1.005, producer=1, aircraft="B"),  # another aircraft
        entry(4, 2.000, producer=2, aircraft="A"),  # later
        entry(5, 2.001, producer=2, aircraft="A"),  # the same producer
    ]
    assert measure(entries, [record(1, 1.0, 1.1)], None).contended == 1


def test_nothing_read_has_no_figures() -> None:
    with pytest.raises(ValueError, match="nothing was read"):
        measure([entry(1, 1.0)], [], None)


def test_bars_show_little_as_little_and_nothing_as_nothing() -> None:
    assert bars([0, 0.01, 50, 100, None], 100) == " ▁▄█ "


def test_the_chart_is_as_wide_as_its_steps_and_marks_the_kill(figures: Figures) -> None:
    lines = chart(figures.course)
    assert {line.index("▏") - line.index("▕") - 1 for line in lines[:3]} == {len(figures.course.read)}
    place = lines[3].index("▲") - lines[0].index("▕") - 1
    assert place == int(figures.course.killed / figures.course.step)
