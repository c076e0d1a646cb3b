"""A topic that is read apart: what is recorded together, and which lanes go on how."""

from __future__ import annotations

import threading
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from outbox_relay.publisher.batch import Batch, runs
from outbox_relay.publisher.finder import Part, Poll, Scope
from outbox_relay.publisher.lane_groups import (
    Care,
    Group,
    Split,
    by_progress,
    care_of,
    caught_up,
    end_care,
    merge,
    of_lane,
)
from outbox_relay.publisher.parked import Claim
from outbox_relay.publisher.read_ahead import ListAhead, ReadAhead
from outbox_relay.publisher.reader import MOST_APART, Reader
from outbox_relay.publisher.snapshot import BEGINNING, START, Progress, Snapshot
from tests.support.waiting import wait_until

FLOOR = Progress(Snapshot(10, 10), is_partial=True)


def _batch(position: int, topic: int | None, lanes: tuple[int, ...] = (0, 1)) -> Batch:
    return Batch(lanes, FLOOR, FLOOR, positions=[position], messages=1, topic=topic)


def test_a_publication_is_of_one_topic_that_is_read_apart_or_of_the_others() -> None:
    """Else its bounds would span what lies between an old backlog and new messages."""
    acknowledged = [
        _batch(at, topic) for at, topic in [(1, 7), (2, 7), (900, None), (901, None), (3, 7), (4, 8)]
    ]
    found = [[batch.positions[0] for batch in run] for run in runs(acknowledged, 5_000)]
    assert found == [[1, 2], [900, 901], [3], [4]]


def test_claims_count_for_the_size_of_a_record() -> None:
    """Else pages of messages that have expired become one statement of any size."""
    claims = [Claim(0, at, at, str(at), None, None) for at in range(300)]
    acknowledged = [Batch((0, 1), FLOOR, FLOOR, claims=claims) for _ in range(4)]
    assert [len(run) for run in runs(acknowledged, 600)] == [2, 2]


def test_a_page_that_waits_behind_the_making_of_lists_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[array[int]] = []

    def read_page(self: ReadAhead, ids: array[int], current: Snapshot) -> Part:
        read.append(ids)
        return Part([], len(ids))

    monkeypatch.setattr(ReadAhead, "_read", read_page)
    ahead = ReadAhead(lambda: cast("Any", None), page=10)
    ids, made = array("q", [1, 2]), threading.Event()
    ahead._pool.submit(made.wait, 10)  # a list is being made
    ahead.start(ids, FLOOR.snapshot)
    assert ahead.take(ids) is None, "the session reads it on its own connection"
    made.set()
    ahead.start(ids, FLOOR.snapshot)
    wait_until(lambda: bool(read), "the page is read")
    assert ahead.take(ids) == Part([], 2)
    assert len(read) == 1, "the first one was given up"
    ahead.close()


@pytest.mark.parametrize(("is_open", "closed"), [(True, 1), (False, 0)])
def test_a_list_that_is_taken_is_not_closed_once_more(*, is_open: bool, closed: int) -> None:
    submitted: list[Any] = []
    pool = cast("Any", SimpleNamespace(submit=submitted.append))
    ahead = ListAhead(pool, cast("Any", None), FLOOR, Scope(frozenset({1})))
    ahead.close()
    assert not submitted, "it was never made"
    ahead._listing = cast("Any", SimpleNamespace(is_open=is_open))
    ahead.close()
    assert len(submitted) == closed


@pytest.mark.parametrize("noticed", [True, False])
def test_a_list_of_a_partition_that_was_dropped_is_begun_again(*, noticed: bool) -> None:
    """`noticed`: by the session, before the list finds out; else the table is missing for another reason."""

    def take() -> None:
        raise psycopg.errors.UndefinedTable

    dropped, left = ("message_p1", "message_p2"), ("message_p2",)
    partitions = SimpleNamespace(tables=left, forget_dropped=lambda: False)
    reader = Reader(cast("Any", SimpleNamespace(page_size=10)), cast("Any", partitions), cast("Any", None))
    ahead = cast("Any", SimpleNamespace(take=take, tables=dropped if noticed else left))
    group = Group({1}, Progress(Snapshot(20, 20), Snapshot(10, 10), 0), topic=7, ahead=ahead)
    if noticed:
        assert list(reader._take_apart(group, ahead)) == []
        assert group.ahead is ahead, "its next page is begun with the partitions that there are"
    else:
        with pytest.raises(psycopg.errors.UndefinedTable):
            list(reader._take_apart(group, ahead))


def test_a_lane_that_goes_on_from_a_floor_has_not_caught_up_before_it_is_read() -> None:
    level = Progress(Snapshot(20, 20))
    groups = [Group({0}, level), *of_lane(1, FLOOR, {}, trial=True), *of_lane(2, FLOOR, {7: Care(900)})]
    assert caught_up([*groups, Group({3}, FLOOR), Group({4}, level, paused=True)]) == {0}
    for group in groups:
        group.progress, group.trial = level, False
    assert caught_up(groups) == {0, 1}, "a topic of lane 2 still goes one by one"


def test_only_the_topic_of_a_refused_message_goes_carefully_for_a_while() -> None:
    rest, part = of_lane(2, FLOOR, {7: Care(900)})
    assert rest.apart == {7}
    assert not rest.one_by_one
    assert part.one_by_one
    assert part.lanes is rest.lanes, "a lane that stops leaves both"
    assert care_of([rest, part]) == {2: {7: Care(900)}}
    part.progress, part.backlog = Progress(Snapshot(30, 30), FLOOR.snapshot, 899, True), array("q", [1])
    end_care([rest, part])
    assert part.care == {7: Care(900)}
    part.progress = Progress(Snapshot(30, 30), FLOOR.snapshot, 900, True)
    end_care([rest, part])
    assert part.care == {}
    assert part.is_listed, "what is left is taken from a list ahead"
    rest.progress = part.progress = Progress(Snapshot(40, 40))
    assert merge([rest, part]) == [rest]
    assert rest.split is None


@pytest.mark.parametrize(("level", "taken"), [(0, 0), (3, 3), (7, 7)])
def test_a_topic_that_is_level_takes_no_place_of_those_that_are_read_apart(level: int, taken: int) -> None:
    """Where it may not join the rest, because that is a list of more than a page each time."""
    reader = Reader(cast("Any", SimpleNamespace(page_size=10)), cast("Any", None), cast("Any", None))
    known, now = Progress(Snapshot(20, 20)), Snapshot(30, 30)
    split = Split(set(range(MOST_APART)))
    listed = Progress(known.snapshot, Snapshot(10, 10), 0)
    parts = [Group({1}, known if n < level else listed, split=split, topic=n) for n in range(MOST_APART)]
    rest = Group({1}, known, split=split)
    poll = Poll(now, 900, [], True, {100 + n: 2 for n in range(MOST_APART)})
    turn = [rest, *(part for part in parts if part.is_level)]
    assert reader._split(rest, poll, turn) is bool(taken)
    assert [group.topic for group in reader.take_apart()] == [100 + n for n in range(taken)]
    assert not reader._split(rest, poll, turn), "all places are taken"


def test_an_open_difference_is_gone_on_with_from_its_floor() -> None:
    """A trial, or an owner next to a topic read apart, leaves a list of all topics; what is published is recorded."""
    open_ = Progress(Snapshot(30, 30), Snapshot(10, 10), 500)
    all_there_is = Progress(Snapshot(30, 30), BEGINNING, 500)
    partial = replace(open_, is_partial=True)
    groups = by_progress({0: FLOOR, 1: partial, 2: START, 3: all_there_is, 4: open_})
    assert [(group.lanes, group.progress) for group in groups] == [
        ({0, 1}, FLOOR),
        ({2}, START),
        ({3}, all_there_is),
        ({4}, open_),
    ]
    assert [group.progress for group in of_lane(1, open_, {7: Care(900)})] == [FLOOR, FLOOR]
    assert of_lane(1, open_, {}, trial=True)[0].progress == open_, (
        "its next message is the one that it stopped at"
    )
    tried, everything, carefully = (
        Group({1}, progress, array("q", [7])) for progress in (open_, all_there_is, open_)
    )
    carefully.careful = Care(900)
    for group in (tried, everything, carefully):
        group.end_list()
    assert tried.is_level
    assert tried.progress == FLOOR
    assert everything.backlog == carefully.backlog == array("q", [7])
