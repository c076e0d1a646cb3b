"""The history checker finds each planted fault, and calls it by its name only; it finds nothing in a clean history."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_relay.proving.history import Fate, Outage, RecordedPlace, SentMessage
from tests.support.planted_history import TOPIC, Planted, partition_of, planted

SEEDS = range(15)
seeds = pytest.mark.parametrize("seed", SEEDS)


@seeds
def test_a_clean_history_breaks_no_promise(seed: int) -> None:
    made = planted(seed)
    findings = made.findings()
    assert findings.kept, made.found()
    assert findings.repeats == 5
    assert all(findings.checked.values())


@seeds
def test_a_message_that_no_consumer_got_is_lost(seed: int) -> None:
    made = planted(seed)
    gone = made.record().message_id
    made.read = [record for record in made.read if record.message_id != gone]
    made.applied.remove(gone)
    assert made.found() == {"lost": [gone]}


@seeds
def test_a_message_that_only_the_inbox_lacks_is_lost(seed: int) -> None:
    made = planted(seed)
    gone = made.record().message_id
    made.applied.remove(gone)
    assert made.found() == {"lost": [gone]}


@seeds
def test_a_commit_without_an_answer_is_lost_once_its_successor_is_there(seed: int) -> None:
    made = planted(seed)
    gone = next(
        one
        for one in made.sent
        if one.fate is Fate.COMMITTED
        and any(later.key == one.key and (later.counter or 0) > (one.counter or 0) for later in _sure(made))
        and not any(
            other.counter == one.counter and other.key == one.key and other.fate is Fate.UNKNOWN
            for other in made.sent
        )
    )
    made.sent[made.sent.index(gone)] = gone._replace(fate=Fate.UNKNOWN)
    assert made.found() == {}
    made.read = [record for record in made.read if record.message_id != gone.message_id]
    made.applied.remove(gone.message_id)
    assert made.found() == {"lost": [gone.message_id]}


def _sure(made: Planted) -> list[SentMessage]:
    return [one for one in made.sent if one.fate is Fate.COMMITTED]


@seeds
@pytest.mark.parametrize("whose", ["rolled back", "nobody's"])
def test_a_message_that_was_not_committed_is_a_ghost(seed: int, whose: str) -> None:
    made = planted(seed)
    ghost = made.message(Fate.ROLLED_BACK).message_id if whose == "rolled back" else "stranger"
    made.read.append(made.read[-1]._replace(offset=10_000, message_id=ghost))
    assert made.found() == {"ghost": [ghost]}


@seeds
def test_an_effect_of_a_message_that_was_not_committed_is_a_ghost(seed: int) -> None:
    made = planted(seed)
    ghost = made.message(Fate.ROLLED_BACK).message_id
    made.applied.insert(3, ghost)
    assert made.found() == {"ghost": [ghost]}


@seeds
@pytest.mark.parametrize("what", [{"counter": 77}, {"key": "another"}])
def test_a_record_that_differs_from_what_was_sent_is_a_ghost(seed: int, what: dict[str, Any]) -> None:
    made = planted(seed)
    record = made.record()
    made.read[made.read.index(record)] = record._replace(**what)
    assert made.found() == {"ghost": [record.message_id]}


@seeds
def test_a_message_that_comes_again_without_a_fault_is_a_duplicate(seed: int) -> None:
    made = planted(seed)
    record = made.record()
    made.outages = [Outage(-2, -1)]
    # Those that the outage excused are duplicates now, and this one with them.
    excused = set(made.found()["duplicate"])
    made.read.append(record._replace(offset=10_000))
    assert made.found().keys() == {"duplicate"}
    assert set(made.found()["duplicate"]) == {*excused, record.message_id}


@seeds
def test_a_repeat_that_begins_after_a_fault_was_over_is_a_duplicate(seed: int) -> None:
    made = planted(seed)
    late = next(record for record in made.read if record.published > made.outages[0].until)
    made.read.append(late._replace(offset=10_000, published=late.published + 1))
    assert made.found() == {"duplicate": [late.message_id]}


@seeds
def test_an_effect_that_was_applied_twice_is_a_duplicate(seed: int) -> None:
    made = planted(seed)
    again = made.chance.choice(made.applied)
    made.applied.append(again)
    assert made.found() == {"duplicate": [again]}


@seeds
def test_messages_of_a_key_that_changed_places_are_reordered(seed: int) -> None:
    made = planted(seed)
    first, second = made.neighbours()
    a, b = made.read[first], made.read[second]
    for place, here, there in ((first, a, b), (second, b, a)):
        moved = there._replace(offset=here.offset, published=here.published, received=b.received)
        made.read[place] = moved
    made.places = [
        RecordedPlace(row.message_id, TOPIC, row.partition, {a: b, b: a}[record].offset)
        if (record := next((one for one in (a, b) if one.message_id == row.message_id), None))
        else row
        for row in made.places
    ]
    assert made.found() == {"reordered": [a.message_id]}


@seeds
def test_a_key_in_two_partitions_is_reordered(seed: int) -> None:
    made = planted(seed)
    _, place = made.neighbours()
    moved = made.read[place]._replace(partition=99)
    made.read[place] = moved
    made.places = [
        row._replace(partition=99) if row.message_id == moved.message_id else row for row in made.places
    ]
    assert moved.message_id in made.found()["reordered"]
    assert made.found().keys() == {"reordered"}


@seeds
def test_effects_of_a_key_in_another_order_are_reordered(seed: int) -> None:
    made = planted(seed)
    first, second = made.neighbours()
    a, b = made.read[first].message_id, made.read[second].message_id
    places = made.applied.index(a), made.applied.index(b)
    made.applied[places[0]], made.applied[places[1]] = b, a
    assert made.found() == {"reordered": [a]}


@seeds
def test_a_half_message_that_is_undecided_and_seen_is_early(seed: int) -> None:
    made = planted(seed)
    early = made.message(Fate.UNDECIDED)
    made.read.append(
        made.read[0]._replace(
            partition=partition_of(early.key),
            offset=10_000,
            message_id=early.message_id,
            key=early.key,
            counter=None,
        )
    )
    assert made.found() == {"early": [early.message_id]}


@seeds
def test_a_half_message_that_is_seen_before_its_commit_was_sent_is_early(seed: int) -> None:
    made = planted(seed)
    early = made.message(Fate.COMMITTED, is_half=True)
    made.read = [
        record._replace(received=early.ending - 0.5) if record.message_id == early.message_id else record
        for record in made.read
    ]
    assert made.found() == {"early": [early.message_id]}


@seeds
@pytest.mark.parametrize(
    "change", [{"offset": 9_999}, {"offset": None}, {"partition": 7}, {"topic": "another"}]
)
def test_a_publication_row_that_names_another_place_is_misplaced(seed: int, change: dict[str, Any]) -> None:
    made = planted(seed)
    row = made.chance.choice(made.places)
    made.places[made.places.index(row)] = row._replace(**change)
    assert made.found() == {"misplaced": [row.message_id]}


@seeds
def test_exactly_once_may_not_know_an_offset_but_knows_the_partition(seed: int) -> None:
    made = planted(seed)
    made.allows_unknown_offsets = True
    row = made.chance.choice(made.places)
    made.places[made.places.index(row)] = row._replace(offset=None)
    assert made.found() == {}
    made.places[made.places.index(row._replace(offset=None))] = row._replace(offset=None, partition=7)
    assert made.found() == {"misplaced": [row.message_id]}


@seeds
def test_a_record_that_no_publication_row_names_is_misplaced(seed: int) -> None:
    made = planted(seed)
    row = made.chance.choice(made.places)
    made.places.remove(row)
    assert made.found() == {"misplaced": [row.message_id]}


@seeds
def test_a_counter_that_was_given_twice_is_unaccounted(seed: int) -> None:
    """PostgreSQL lost a commit that it had acknowledged, and gave its number to another message."""
    made = planted(seed)
    message = made.message(Fate.COMMITTED)
    twin = message._replace(message_id="twin")
    made.sent.append(twin)
    found = made.found()
    assert found == {"unaccounted": ["twin"], "lost": ["twin"]}
