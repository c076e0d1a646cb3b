"""Short scripts for the safeguards of what was read back from Kafka."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outbox_relay.publisher.core.values import Row, Scope
from tests.support.core_search.directed_calls import core_of, give, row_of, sends
from tests.support.core_search.directed_worlds import Flags
from tests.support.core_search.schedules import SMALL


def _published(core: Any) -> list[tuple[int, int]]:
    return [(item.row.id, item.offset) for item in core.streams.published]


def _doubtful(*ids: int, key: str = "b1") -> list[Row]:
    return [row_of(id_, key=key, in_doubt=True) for id_ in ids]


def what_kafka_has_is_recorded_and_not_sent(made: Any, _: Flags) -> bool:
    """1 and 2 are in Kafka, and 3 is not."""
    core = core_of(made)
    core.read_back.add("b", 0, {1: 7, 2: 9})
    give(core, "tail", *_doubtful(1, 2, 3))
    return _published(core) == [(1, 7), (2, 9)] and sends(core) == [3]


def behind_a_missing_message_all_of_its_key_are_sent(made: Any, _: Flags) -> bool:
    """1 is missing: alone behind 2, it would be the newest one of its key. 3 has another key."""
    core = core_of(made)
    core.read_back.add("b", 0, {2: 9, 3: 10})
    give(core, "tail", *_doubtful(1, 2), *_doubtful(3, key="b2"))
    return _published(core) == [(3, 10)] and sends(core) == [1, 2]


def what_is_out_of_order_is_sent(made: Any, _: Flags) -> bool:
    """1 came a second time, behind 2: that has to come again, too."""
    core = core_of(made)
    core.read_back.add("b", 0, {1: 9, 2: 7})
    give(core, "tail", *_doubtful(1, 2))
    return _published(core) == [(1, 9)] and sends(core) == [2]


def what_is_in_no_doubt_is_sent(made: Any, _: Flags) -> bool:
    """An id is found, of a message that no former leader can have sent."""
    core = core_of(made)
    core.read_back.add("b", 0, {1: 9})
    give(core, "tail", row_of(1))
    return sends(core) == [1]


def what_has_expired_leaves_no_gap(made: Any, _: Flags) -> bool:
    """1 has expired and is not in Kafka; so it never will be. 2 is there."""
    core = core_of(made)
    core.read_back.add("b", 0, {2: 9})
    give(core, "tail", *(row._replace(is_expired=row.id == 1) for row in _doubtful(1, 2)))
    return _published(core) == [(2, 9)]


def what_is_held_waits(made: Any, _: Flags) -> bool:
    """The key is held for 1. 2 is in Kafka and waits all the same: 1 may not be, and has to go in front of it."""
    core = core_of(made, {Scope("key", "b", "b1"): 1})
    core.read_back.add("b", 0, {2: 9})
    give(core, "tail", *_doubtful(2))
    return not _published(core) and len(core.holds.claims) == 1


def what_is_found_in_another_partition_is_sent(made: Any, _: Flags) -> bool:
    """The key is in partition 0 now."""
    core = core_of(made)
    core.read_back.add("b", 1, {1: 9})
    give(core, "tail", *_doubtful(1))
    return sends(core) == [1]


def the_keys_that_are_remembered_are_bounded(made: Any, _: Flags) -> bool:
    """Three keys are in doubt, and two are remembered: from then on all are sent."""
    core = core_of(made, limits=replace(SMALL, doubted=2))
    core.read_back.add("b", 0, {1: 7, 2: 8, 3: 9})
    give(core, "tail", *(row for id_ in (1, 2, 3) for row in _doubtful(id_, key=f"k{id_}")))
    return _published(core) == [(1, 7), (2, 8)] and sends(core) == [3]


def keys_of_what_was_not_read_do_not_count(made: Any, _: Flags) -> bool:
    """A backlog of a partition that was not read is in doubt, too."""
    core = core_of(made, limits=replace(SMALL, doubted=2))
    core.read_back.add("b", 0, {4: 7})
    rows = [row_of(id_, "a", f"k{id_}", in_doubt=True) for id_ in (1, 2, 3)]
    give(core, "tail", *rows, *_doubtful(4))
    return _published(core) == [(4, 7)]


READ_BACK = (
    what_kafka_has_is_recorded_and_not_sent,
    behind_a_missing_message_all_of_its_key_are_sent,
    what_is_out_of_order_is_sent,
    what_is_in_no_doubt_is_sent,
    what_has_expired_leaves_no_gap,
    what_is_held_waits,
    what_is_found_in_another_partition_is_sent,
    the_keys_that_are_remembered_are_bounded,
    keys_of_what_was_not_read_do_not_count,
)
