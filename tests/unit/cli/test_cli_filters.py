"""What `outbox message ls` can be asked: reading its options, and the windows of a search."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pytest

from outbox_relay.operations.filters import STATUSES, FilterError, Filters, identity, key, read_moment
from outbox_relay.operations.messages import FIRST_WINDOW, LARGEST_WINDOW, Windows, compose

OURS = uuid.UUID("00000000-0005-86af-ab5b-00854e350e2e")
FOREIGN = uuid.UUID("4bf92f35-77b3-4da6-a3ce-929d0e0e4736")


def test_a_message_is_named_by_number_or_uuid() -> None:
    assert identity(" 42 ") == (42, None)
    assert identity(str(OURS)) == (None, OURS)
    assert identity(OURS.hex) == (None, OURS)


@pytest.mark.parametrize("text", ["", "0", "-1", "4.5", "abc", "٤٢", "9223372036854775808", "o-17"])
def test_anything_else_names_no_message(text: str) -> None:
    with pytest.raises(FilterError, match="its id"):
        identity(text)


def test_a_key_is_text_or_marked_base64() -> None:
    assert key("订单") == "订单".encode()
    assert key("base64:/wA=") == b"\xff\x00"
    with pytest.raises(FilterError, match="not base64"):
        key("base64:!")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1.5h", 5400), ("3d", 259_200), ("1w", 604_800), ("5 min", 300)],
)
def test_a_span_is_so_many_seconds_ago(text: str, seconds: float) -> None:
    assert read_moment("--since", text) == seconds


def test_an_iso_time_keeps_its_zone_and_gets_the_local_one_without() -> None:
    assert read_moment("--since", "2026-11-21T20:00Z") == datetime(2026, 11, 21, 20, tzinfo=UTC)
    local = read_moment("--since", "2026-11-21T20:00")
    assert isinstance(local, datetime)
    assert local.tzinfo is not None
    assert local.replace(tzinfo=None) == datetime(2026, 11, 21, 20)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10x", "-5m", "2026-13-01", "1e9d", "99999w"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(FilterError, match=r"--until .* is not a time; expected a span such as"):
        read_moment("--until", text)


@pytest.mark.parametrize(
    ("message_id", "condition"), [(OURS, "by_own_message_id"), (FOREIGN, "by_foreign_message_id")]
)
def test_the_version_of_a_message_id_tells_which_index_knows_it(
    message_id: uuid.UUID, condition: str
) -> None:
    names, _ = Filters(message_id=message_id).conditions()
    assert names == [condition]


@pytest.mark.parametrize("status", [None, *STATUSES])
def test_every_status_makes_a_statement_whose_values_are_bound(status: str | None) -> None:
    hostile = "x'; DROP TABLE outbox.message; --"
    filters = Filters(
        topic=hostile, key=hostile.encode(), tag=hostile, index_key=hostile, status=status, since=5.0
    )
    statement, values = compose(filters)
    assert hostile not in statement.as_string(None)
    assert values["topic"] == hostile


def windows(
    first: int,
    newest: int,
    likely: int,
    ids: Iterable[int] = (),
    bounds: Sequence[int] = (),
) -> list[tuple[int, int]]:
    """The windows of a search for twenty matches that have these ids."""
    found, made, matches = [], Windows(first, newest, bounds, 20), 0
    made.expect(likely)
    while matches < 20 and (window := made.next(matches)) is not None:
        found.append(window)
        matches += sum(window[0] < id <= window[1] for id in ids)
    return found


@pytest.mark.parametrize("likely", [12_345_678, 99_999_999, 9_000_000, 7, 0])
@pytest.mark.parametrize("ids", [(), range(7, 12_345_678, 1_000_000), (12_000_000, 8)])
@pytest.mark.parametrize("bounds", [(), (7, 5_000_001, 10_000_001, 15_000_001), range(7, 12_345_678, 1_000)])
def test_windows_cover_every_id_once_from_the_newest_backwards(
    likely: int, ids: Iterable[int], bounds: Sequence[int]
) -> None:
    found = windows(7, 12_345_678, likely, ids, bounds)
    assert found[0][1] == 12_345_678
    assert found[-1][0] == 6
    assert all(below < top for below, top in found)
    assert all(later[1] == earlier[0] for earlier, later in itertools.pairwise(found))
    assert max(top - below for below, top in found) <= LARGEST_WINDOW
    assert len(found) < 40


def test_there_are_no_windows_without_ids() -> None:
    assert windows(1, 0, 0) == []
    assert windows(1, 1, 1) == [(0, 1)]


def test_a_search_for_something_regular_reads_little_more_than_what_it_shows() -> None:
    found = windows(1, 10_000_000, 10_000_000, range(1, 10_000_000, 10_000))
    assert 200_000 <= 10_000_000 - found[-1][0] <= 300_000
    found = windows(1, 10_000_000, 10_000_000, range(1, 10_000_000, 100))
    assert 10_000_000 - found[-1][0] == FIRST_WINDOW


def test_a_search_for_a_time_long_ago_begins_small_where_that_time_ends() -> None:
    found = windows(1, 10_000_000, 4_000_000, range(1, 4_000_001))
    assert found == [(5_000_000, 10_000_000), (4_000_000, 5_000_000), (4_000_000 - FIRST_WINDOW, 4_000_000)]


def test_a_search_for_something_rare_reads_no_partition_twice() -> None:
    bounds = (1, 5_000_001, 10_000_001)
    found = windows(1, 14_000_000, 14_000_000, bounds=bounds)
    assert found[-3:] == [(10_000_000, 13_778_000), (5_000_000, 10_000_000), (0, 5_000_000)]
    narrow = windows(1, 1_000_000, 1_000_000, bounds=range(1, 1_000_001, 1_000))
    assert narrow[-1][0] == 0
    assert len(narrow) == 4, "many small partitions are in one window"


def test_what_fits_above_the_expected_id_ends_the_large_steps() -> None:
    found = windows(1, 20_000_000, 1_000_000, (19_000_000,))
    assert found[:2] == [(15_000_000, 20_000_000), (15_000_000 - FIRST_WINDOW, 15_000_000)]
