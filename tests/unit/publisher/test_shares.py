"""Shares of lanes: every relay computes its own from the same table, and they fit together."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from outbox_relay.publisher.shares import share_of

LANES = 8


@pytest.mark.parametrize("relays", range(1, 12))
def test_shares_are_runs_of_neighbours_that_cover_each_lane_once(relays: int) -> None:
    epochs = [number * 3 + 1 for number in range(relays)]
    shares = [share_of(epochs, epoch) for epoch in epochs]
    assert sorted(lane for share in shares for lane in share) == list(range(LANES))
    assert all(max(share) - min(share) == len(share) - 1 for share in shares if share)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "the newest relays have the smaller shares"


def test_nobodys_share_shrinks_when_another_relay_ends() -> None:
    for relays in range(2, 11):
        epochs = list(range(relays))
        for left in combinations(epochs, relays - 1):
            for epoch in left:
                assert len(share_of(left, epoch)) >= len(share_of(epochs, epoch))


def test_nobodys_share_grows_when_a_relay_joins() -> None:
    for fewer, more in pairwise(list(range(count)) for count in range(1, 12)):
        for epoch in fewer:
            assert len(share_of(more, epoch)) <= len(share_of(fewer, epoch))
