"""A producer of the demo whose connection breaks: what it journals is what the database did."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outbox_local.demo import journal
from outbox_local.demo.flights import Flight, read_flights
from outbox_local.demo.journal import Entry, FlightOutcome
from outbox_local.demo.producer import SQL, Producer, Work

SEED = 7


class BreaksAtEnd(psycopg.Connection[Any]):
    """A connection that is lost once, at the third COMMIT: before the server has it, or before its answer is here."""

    commits = 0
    answer_lost = False

    def commit(self) -> None:
        BreaksAtEnd.commits += 1
        if BreaksAtEnd.commits == 3:
            if self.answer_lost:
                super().commit()
            self.close()
            raise psycopg.OperationalError("the connection is lost")
        super().commit()


@pytest.fixture
def flights() -> list[Flight]:
    """Six flights of one aircraft, none of which rolls back."""
    found = [flight for flight in read_flights(5_000) if flight.aircraft == "N725MQ"]
    return [flight for flight in found if not flight.rolls_back(SEED)][:6]


@pytest.fixture
def office(database: str) -> Iterator[psycopg.Connection[Any]]:
    """The demo's tables; a connection that looks at them."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(SQL["create"])
        yield conn


def enter(connect: Callable[[], psycopg.Connection[Any]], flights: list[Flight]) -> list[Entry]:
    out = io.StringIO()
    work = Work("flights", producer=0, seed=SEED, rate=None, journal="")
    Producer(connect, work, out).run(flights)
    return [journal.entry(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_lost_commit_is_unknown_and_then_settled_exactly_once(
    office: psycopg.Connection[Any],
    database: str,
    flights: list[Flight],
    answer_lost: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BreaksAtEnd, "commits", 0)
    monkeypatch.setattr(BreaksAtEnd, "answer_lost", answer_lost)
    entries = enter(lambda: BreaksAtEnd.connect(database), flights)
    numbers = [flight.number for flight in flights]
    assert [entry.flight for entry in entries if entry.outcome is FlightOutcome.UNKNOWN] == [numbers[2]]
    committed = [entry for entry in entries if entry.outcome is FlightOutcome.COMMITTED]
    assert [(entry.flight, entry.sequence) for entry in committed] == list(
        zip(numbers, range(1, 7), strict=True)
    )
    assert office.execute("select flight, sequence from demo.logbook order by sequence").fetchall() == list(
        zip(numbers, range(1, 7), strict=True)
    )
    assert office.execute("select count(*) from outbox.message").fetchone() == (6,)


def test_a_flight_that_rolls_back_leaves_nothing_and_its_number_to_the_next(
    office: psycopg.Connection[Any], database: str
) -> None:
    known = read_flights(20_000)
    rolled_back = next(flight for flight in known if flight.rolls_back(SEED))
    following = next(
        flight for flight in known if flight.aircraft == rolled_back.aircraft and not flight.rolls_back(SEED)
    )
    entries = enter(lambda: psycopg.connect(database), [rolled_back, following])
    assert [(entry.outcome, entry.sequence) for entry in entries] == [
        (FlightOutcome.ROLLED_BACK, 1),
        (FlightOutcome.COMMITTED, 1),
    ]
    assert office.execute("select key from outbox.message").fetchall() == [(following.aircraft.encode(),)]
    assert office.execute("select flight from demo.logbook").fetchall() == [(following.number,)]
