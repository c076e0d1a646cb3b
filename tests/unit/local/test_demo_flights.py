"""The source of the demo: what is known of the packaged file, and each row's way to a message and back."""

from __future__ import annotations

import pytest

from outbox_local.demo.flights import (
    JANUARY,
    TWO_WEEKS,
    WHOLE_YEAR,
    Flight,
    SourceError,
    line_of,
    read_flights,
)

# All in one process: reading the year takes longer than what is asked of it.
pytestmark = pytest.mark.xdist_group("flights")


@pytest.fixture(scope="module")
def year() -> list[Flight]:
    return read_flights()


def test_the_year_is_whole(year: list[Flight]) -> None:
    assert len(year) == WHOLE_YEAR
    assert [flight.number for flight in year] == list(range(1, WHOLE_YEAR + 1))


def test_the_year_begins_with_two_weeks_and_january(year: list[Flight]) -> None:
    days = [flight.line.split(",")[:3] for flight in year[: JANUARY + 1]]
    assert days[TWO_WEEKS - 1] == ["2013", "1", "14"]
    assert days[TWO_WEEKS] == ["2013", "1", "15"]
    assert days[JANUARY - 1] == ["2013", "1", "31"]
    assert days[JANUARY][1] != "1"


def test_flights_without_a_tail_number_are_ordered_by_carrier_and_number(year: list[Flight]) -> None:
    tails = [flight.line.split(",")[11] for flight in year]
    without = [flight for flight, tail in zip(year, tails, strict=True) if tail == "NA"]
    assert len(without) == 2_512
    assert without[0].values["tailnum"] is None
    assert without[0].aircraft == "AA-133"
    assert not any("-" in tail for tail in tails)


def test_every_row_is_the_same_text_again(year: list[Flight]) -> None:
    assert all(line_of(flight.values) == flight.line for flight in year[::23])


def test_three_in_a_hundred_roll_back_and_the_seed_decides_which(year: list[Flight]) -> None:
    january = year[:JANUARY]
    first, second = ({f.number for f in january if f.rolls_back(seed)} for seed in (1, 2))
    assert 0.025 < len(first) / JANUARY < 0.035
    assert first != second
    assert first == {f.number for f in january if f.rolls_back(1)}


def test_a_flight_is_named_as_people_would_find_it(year: list[Flight]) -> None:
    assert year[0].name == "UA 1545 EWR-IAH of 2013-01-01 (row 1)"


def test_more_flights_than_there_are_is_an_error() -> None:
    with pytest.raises(SourceError, match="has 336,776 flights, not 336,777"):
        read_flights(WHOLE_YEAR + 1)
