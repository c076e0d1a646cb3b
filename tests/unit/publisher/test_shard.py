"""`--shard I/N`: which lanes a shard has, and which texts name none."""

from __future__ import annotations

import pytest

from outbox.partitioning.lanes import LANES
from outbox_relay.publisher.shard import Shard, ShardError


@pytest.mark.parametrize("count", range(1, LANES + 1))
def test_shards_are_runs_of_neighbours_that_cover_each_lane_once(count: int) -> None:
    shards = [Shard.parse(f"{number + 1}/{count}").lanes for number in range(count)]
    assert sorted(lane for lanes in shards for lane in lanes) == list(range(LANES))
    assert all(max(lanes) - min(lanes) == len(lanes) - 1 for lanes in shards)
    sizes = [len(lanes) for lanes in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "'' is not a shard"),
        ("2", "'2' is not a shard"),
        ("1/2/3", "'1/2/3' is not a shard"),
        ("a/2", "'a/2' is not a shard"),
        ("-1/2", "'-1/2' is not a shard"),
        ("1/\u0662", "is not a shard"),
        ("3/2", "there is no shard 3 of 2"),
        ("0/2", "there is no shard 0 of 2"),
        ("1/0", "divides the 8 lanes of a database by 0"),
        ("1/9", "divides the 8 lanes of a database by 9"),
    ],
)
def test_what_names_no_shard_is_refused_with_what_is_expected(text: str, wrong: str) -> None:
    with pytest.raises(ShardError) as caught:
        Shard.parse(text)
    assert wrong in str(caught.value)
    assert "expected I/N with I from 1 to N and N from 1 to 8, such as 1/2" in str(caught.value)
