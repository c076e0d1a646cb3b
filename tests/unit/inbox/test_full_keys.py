"""What may be parked behind held keys: bounds hold whatever a count has missed, and other keys have their room."""

from __future__ import annotations

import random

import pytest

from outbox.errors import ConfigurationError
from outbox.inbox import Limits
from outbox.inbox.core.full_keys import CountBehind, FullKeyError, FullKeys

FULL, OTHER = ("t", b"full"), ("t", b"other")


def count(behind: dict[tuple[str, bytes | None], int], keys: FullKeys, members: int = 1) -> CountBehind:
    """What the keeper counts of messages that are behind keys."""
    long = {key: messages for key, messages in behind.items() if messages > keys.per_key // 2}
    return CountBehind(len(behind), sum(behind.values()), members, long)


def test_a_full_key_takes_no_more_and_another_one_does() -> None:
    keys = FullKeys(10, 100)
    keys.begin_count()
    keys.counted(count({FULL: 10}, keys))
    assert (keys.admit(*FULL, 5), keys.admit(*OTHER, 5), keys.count, keys.held) == (0, 5, 1, 1)
    with pytest.raises(FullKeyError, match="10 messages wait behind its key"):
        keys.require(*FULL)


def test_a_key_with_room_for_some_takes_these() -> None:
    keys = FullKeys(10, 100)
    keys.begin_count()
    keys.counted(count({FULL: 7}, keys))
    assert (keys.admit(*FULL, 5), keys.admit(*FULL, 1)) == (3, 0)


def test_the_room_of_a_group_is_shared_by_its_members() -> None:
    keys = FullKeys(10, 20)
    keys.begin_count()
    keys.counted(count({FULL: 8}, keys, members=3))
    assert (keys.admit(*OTHER, 5), keys.admit(*OTHER, 5)) == (4, 0)


def test_a_key_is_full_no_more_once_two_counts_found_room() -> None:
    keys = FullKeys(10, 100)
    for behind in (10, 0, 0):
        keys.begin_count()
        keys.counted(count({FULL: behind} if behind else {}, keys))
        admitted = keys.admit(*FULL, 1)
        assert admitted == (0 if behind else 1)
    keys.begin_count()
    assert keys.count == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_count_that_comes_late_lets_more_in_than_the_bounds(seed: int) -> None:
    """Transactions commit or are rolled back at any time up to the end of the next count."""
    chance, keys = random.Random(seed), FullKeys(10, 25)
    parked: dict[tuple[str, bytes | None], int] = {}
    open_: list[tuple[tuple[str, bytes | None], int]] = []
    for _ in range(400):
        if chance.random() < 0.3:
            keys.begin_count()
            found = count(dict(parked), keys)
            for key, messages in open_:
                if chance.random() < 0.8:
                    parked[key] = parked.get(key, 0) + messages
            open_ = []
            keys.counted(found)
        key = ("t", b"%d" % chance.randrange(5))
        if messages := keys.admit(*key, chance.randrange(1, 8)):
            open_.append((key, messages))
        if parked and chance.random() < 0.2:
            drained = chance.choice(list(parked))
            parked[drained] -= 1
            if not parked[drained]:
                del parked[drained]
        assert sum(parked.values()) <= 25
        assert max(parked.values(), default=0) <= 10


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="behind_key = 0; allowed: 1 or more"):
        Limits(behind_key=0)
