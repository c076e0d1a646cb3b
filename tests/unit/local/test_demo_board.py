"""The board: producers that share it get each flight once, and neighbours are of one aircraft."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path

from outbox_local.demo import board
from outbox_local.demo.flights import read_flights

TAKER = "import sys; from outbox_local.demo import board; print(*[f.number for f in board.turns(0)])"


def test_processes_that_share_the_board_get_each_flight_once(tmp_path: Path) -> None:
    flights = read_flights(20_000)
    board.write(tmp_path / "board", flights)
    with (tmp_path / "board").open("rb") as file:
        takers = [
            subprocess.Popen([sys.executable, "-c", TAKER], stdin=file, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        taken = [[int(number) for number in taker.communicate()[0].split()] for taker in takers]
    assert [taker.returncode for taker in takers] == [0] * 4
    assert sorted(number for numbers in taken for number in numbers) == [f.number for f in flights]


def test_what_is_taken_is_what_was_written(tmp_path: Path) -> None:
    flights = read_flights(5_000)
    board.write(tmp_path / "board", flights)
    with (tmp_path / "board").open("rb") as file:
        taken = list(board.turns(file.fileno()))
    assert sorted(taken, key=lambda flight: flight.number) == flights


def test_flights_of_an_aircraft_follow_each_other_within_a_batch(tmp_path: Path) -> None:
    board.write(tmp_path / "board", read_flights(board.BATCH))
    with (tmp_path / "board").open("rb") as file:
        aircraft = [flight.aircraft for flight in board.turns(file.fileno())]
    assert len(list(groupby(aircraft))) == len(set(aircraft)) < len(aircraft)
