"""The demo's proof: it holds for what is right, and names the flight for anything that is not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_local.demo.journal import FlightOutcome
from outbox_local.demo.proof import prove
from tests.support.demo_world import World, world

chances = st.integers(0, 2**32)


def broken(made: World) -> dict[str, list[str]]:
    """The claims that do not hold, with their offenders."""
    return {name: claim.offenders for name, claim in made.prove().claims.items() if not claim.holds}


def pair_of_one_aircraft(made: World) -> tuple[int, int]:
    """Places of two records of the same aircraft."""
    seen: dict[str | None, int] = {}
    for place, record in enumerate(made.records):
        if record.key in seen:
            return seen[record.key], place
        seen[record.key] = place
    raise AssertionError("no aircraft flew twice")


@settings(deadline=None, max_examples=40)
@given(chances)
def test_holds_whatever_the_order_of_commits(chance: int) -> None:
    made = world(chance=chance)
    proof = made.prove()
    assert proof.holds, broken(made)
    assert proof.committed == proof.read == len(made.records)
    assert proof.committed + proof.rolled_back == len(made.source)


@settings(deadline=None, max_examples=40)
@given(chances, st.data())
def test_a_missing_record_is_named(chance: int, data: st.DataObject) -> None:
    made = world(chance=chance)
    place = data.draw(st.integers(0, len(made.records) - 1))
    lost = made.entry(made.records.pop(place))
    made.renumber()
    (offender,) = broken(made)["arrived"]
    assert f"(row {lost.flight})" in offender
    assert f"aircraft {lost.aircraft}" in offender


def test_the_gap_that_a_missing_record_leaves_is_named() -> None:
    made = world()
    first, _ = pair_of_one_aircraft(made)
    lost = made.entry(made.records.pop(first))
    made.renumber()
    assert f"number {lost.sequence + 1} of aircraft {lost.aircraft} came after" in broken(made)["order"][0]


@settings(deadline=None, max_examples=40)
@given(chances, st.data())
def test_two_of_one_aircraft_in_the_wrong_order_are_named(chance: int, data: st.DataObject) -> None:
    made = world(300, chance=chance)
    first, second = pair_of_one_aircraft(made)
    late = made.entry(made.records[first])
    made.records[first], made.records[second] = made.records[second], made.records[first]
    made.renumber()
    found = broken(made)
    assert set(found) == {"order"}
    assert any(f"(row {late.flight})" in offender for offender in found["order"])


def test_records_of_different_aircraft_have_no_order() -> None:
    made = world()
    place = next(
        place
        for place in range(len(made.records) - 1)
        if made.records[place].key != made.records[place + 1].key
    )
    made.records[place : place + 2] = reversed(made.records[place : place + 2])
    made.renumber()
    assert made.prove().holds


@settings(deadline=None, max_examples=40)
@given(chances, st.data())
def test_a_second_copy_without_a_kill_is_named(chance: int, data: st.DataObject) -> None:
    made = world(chance=chance)
    place = data.draw(st.integers(0, len(made.records) - 1))
    made.records.insert(place, made.records[place])
    made.renumber()
    found = broken(made)
    assert set(found) == {"once"}
    assert f"(row {made.entry(made.records[place]).flight})" in found["once"][0]


def test_the_same_flight_under_another_message_id_is_named() -> None:
    made = world()
    record = made.records[5]
    other = (("outbox-id", "other"), *record.headers[1:])
    made.records.append(record._replace(headers=other))
    made.renumber()
    (offender,) = broken(made)["once"]
    assert "another message id, other after id-" in offender


def test_a_rolled_back_flight_that_arrives_is_named() -> None:
    made = world(300)
    flight = next(flight for flight in made.source if flight.rolls_back(made.seed))
    template = made.records[0]
    body = {"row": flight.number, "sequence": 1, **flight.values}
    made.records.append(template._replace(key=flight.aircraft, value=json.dumps(body)))
    made.renumber()
    found = broken(made)
    assert set(found) == {"rolled back"}
    assert f"(row {flight.number})" in found["rolled back"][0]


@pytest.mark.parametrize(
    "value", [None, "", "no JSON", "[]", '{"row": 0}', '{"row": true}', '{"row": 10000000}']
)
def test_a_record_of_no_flight_is_named(value: str | None) -> None:
    made = world()
    made.records.append(made.records[0]._replace(value=value))
    made.renumber()
    found = broken(made)
    assert set(found) == {"nothing else"}
    assert "partition" in found["nothing else"][0]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("row", lambda body: body.update(dest="XXX")),
        ("row", lambda body: body.pop("distance")),
        ("row", lambda body: body.update(year="2014")),
        ("sequence", lambda body: body.update(sequence=body["sequence"] + 1)),
    ],
)
def test_a_changed_body_is_named(what: str, change: Callable[[dict[str, object]], object]) -> None:
    made = world()
    body = json.loads(made.records[7].value or "")
    change(body)
    made.records[7] = made.records[7]._replace(value=json.dumps(body))
    (offender,) = broken(made)["content"]
    assert f"(row {body['row']}): its {what} is" in offender


def test_a_changed_key_or_tag_is_named() -> None:
    made = world()
    made.records[3] = made.records[3]._replace(key="N0")
    made.records[4] = made.records[4]._replace(headers=(made.records[4].headers[0], ("outbox-tags", "UA")))
    key, tags = broken(made)["content"]
    assert "its key is 'N0'" in key
    assert "its tags is 'UA'" in tags


def test_an_aircraft_in_two_partitions_is_named() -> None:
    made = world(300)
    _, second = pair_of_one_aircraft(made)
    moved = made.records[second]
    made.records[second] = moved._replace(partition=(moved.partition + 1) % 3)
    made.renumber()
    found = broken(made)
    assert "partition" in found
    assert f"aircraft {moved.key}" in found["partition"][0]


def test_a_flight_that_no_producer_journalled_is_named() -> None:
    made = world()
    forgotten = made.entries.pop()
    found = broken(made)
    assert any(f"(row {forgotten.flight})" in offender for offender in found["accounted"])


def test_an_outcome_that_was_not_planned_is_named() -> None:
    made = world()
    place = next(i for i, entry in enumerate(made.entries) if entry.outcome is FlightOutcome.COMMITTED)
    entry = made.entries[place] = made.entries[place]._replace(outcome=FlightOutcome.ROLLED_BACK)
    found = broken(made)
    assert f"(row {entry.flight}): rolled back, which was not the plan" in found["accounted"][0]
    assert "rolled back" in found


def test_two_flights_with_the_same_number_of_an_aircraft_are_named() -> None:
    made = world(300)
    first, second = pair_of_one_aircraft(made)
    one, other = made.entry(made.records[first]), made.entry(made.records[second])
    made.entries.remove(other)
    made.entries.append(other._replace(sequence=one.sequence))
    assert any(
        f"number {one.sequence} of aircraft {one.aircraft}" in text for text in broken(made)["accounted"]
    )


@pytest.mark.parametrize("arrives", [True, False])
def test_a_flight_of_unknown_outcome_may_arrive_or_not(arrives: bool) -> None:
    made = world()
    # The last of its aircraft: whether it is there changes nobody else's number.
    record = made.records[-1]
    entry = made.entry(record)
    made.entries.remove(entry)
    made.entries.append(entry._replace(outcome=FlightOutcome.UNKNOWN))
    if not arrives:
        made.records.pop()
    proof = made.prove()
    assert proof.holds
    assert proof.unknown == 1


def test_an_unknown_outcome_that_was_settled_counts_as_settled() -> None:
    made = world()
    entry = made.entry(made.records[-1])
    made.entries.insert(0, entry._replace(outcome=FlightOutcome.UNKNOWN))
    assert made.prove().holds
    assert made.prove().unknown == 0
    made.records.pop()
    assert set(broken(made)) == {"arrived"}


def test_ten_offenders_are_named_and_all_are_counted() -> None:
    made = world()
    proof = prove(made.source, made.entries, [], seed=made.seed)
    claim = proof.claims["arrived"]
    assert len(claim.offenders) == 10
    assert claim.broken == proof.committed == len(made.records)


def test_a_record_read_out_of_its_offset_order_is_named() -> None:
    made = world()
    made.records[9] = made.records[9]._replace(offset=0)
    assert "was read after offset" in broken(made)["order"][0]
