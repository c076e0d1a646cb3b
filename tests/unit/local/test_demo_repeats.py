"""What may come twice because the relay was killed: the last few of each aircraft, in order, once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_local.demo.claims import ProofResult
from outbox_local.demo.journal import Crash, Record
from tests.support.demo_world import KILLED_AT, World, world

RESTARTED_MS = int(KILLED_AT * 1000) + 500


def killed_world(chance: int = 1) -> tuple[World, int]:
    """A world whose relay was killed in the middle, and the place of the first record after that."""
    made = world(300, chance=chance)
    made.crash = Crash(KILLED_AT)
    middle = next(i for i, record in enumerate(made.records) if record.timestamp > KILLED_AT * 1000)
    for place in range(middle, len(made.records)):
        record = made.records[place]
        made.records[place] = record._replace(timestamp=record.timestamp + 500)
    return made, middle


def again(records: list[Record]) -> list[Record]:
    return [record._replace(timestamp=RESTARTED_MS) for record in records]


def insert(made: World, place: int, repeats: list[Record]) -> ProofResult:
    made.records[place:place] = repeats
    made.renumber()
    return made.prove()


def busiest(made: World, middle: int) -> list[Record]:
    """The records before the kill of the aircraft that had most."""
    flown: dict[str | None, list[Record]] = {}
    for record in made.records[:middle]:
        flown.setdefault(record.key, []).append(record)
    return max(flown.values(), key=len)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 100))
def test_the_last_records_before_the_kill_may_come_again(chance: int, count: int) -> None:
    made, middle = killed_world(chance)
    repeats = again(made.records[middle - count : middle])
    proof = insert(made, middle, repeats)
    assert proof.holds, [claim for claim in proof.claims.values() if not claim.holds]
    assert proof.repeated == count


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 100))
def test_and_one_that_is_left_out_of_them_is_missed(chance: int) -> None:
    made, middle = killed_world(chance)
    flown = busiest(made, middle)
    assert len(flown) >= 2
    proof = insert(made, middle, again(flown[:-1]))
    (offender,) = proof.claims["once"].offenders
    assert f"aircraft {flown[0].key} ended with number {len(flown) - 1}, not with {len(flown)}" in offender


def test_not_in_another_order() -> None:
    made, middle = killed_world()
    proof = insert(made, middle, again(busiest(made, middle)[::-1]))
    assert "was repeated before" in proof.claims["once"].offenders[0]


def test_not_twice() -> None:
    made, middle = killed_world()
    last = again([made.records[middle - 1]])
    proof = insert(made, middle, last + last)
    assert proof.claims["once"].broken == 1


def test_not_under_another_message_id() -> None:
    made, middle = killed_world()
    (last,) = again([made.records[middle - 1]])
    proof = insert(made, middle, [last._replace(headers=(("outbox-id", "new"), *last.headers[1:]))])
    assert "another message id" in proof.claims["once"].offenders[0]


@pytest.mark.parametrize("timestamp", [int(KILLED_AT * 1000) - 1, int(KILLED_AT * 1000) - 1000])
def test_not_by_the_relay_that_was_killed(timestamp: int) -> None:
    made, middle = killed_world()
    proof = insert(made, middle, [made.records[middle - 1]._replace(timestamp=timestamp)])
    assert "no kill of the relay lies between" in proof.claims["once"].offenders[0]


def test_not_what_the_next_relay_published_first() -> None:
    made, _ = killed_world()
    late = made.records[-1]
    proof = insert(made, len(made.records), [late._replace(timestamp=late.timestamp + 100)])
    assert "no kill of the relay lies between" in proof.claims["once"].offenders[0]


def test_not_after_a_later_flight_of_the_aircraft() -> None:
    made, middle = killed_world()
    keys = {record.key for record in made.records[middle:]}
    flown = [record for record in made.records[:middle] if record.key in keys][-1]
    proof = insert(made, len(made.records), [flown._replace(timestamp=made.records[-1].timestamp + 100)])
    assert "the repeats of its aircraft" in proof.claims["once"].offenders[0]
