"""Whose runs are counted before they begin, and which messages run one at a time."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from outbox.inbox.core.suspects import WATCHED, Suspects
from outbox.inbox.messages import ConsumedMessage, Delivery

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def delivery(offset: int, partition: int = 0) -> Delivery:
    """A message of the topic `orders`."""
    message = ConsumedMessage(UUID(int=offset), "orders", partition, offset, b"k", b"", (), NOW, NOW)
    return Delivery(message, 1, date(2026, 11, 29), b"", None)


@pytest.fixture
def suspects() -> Suspects:
    """Partition 0 was given back, and partition 1 was not: two messages of it had begun."""
    found = Suspects()
    found.watch("orders", 0, None)
    found.watch("orders", 1, [5, 7])
    return found


def test_runs_are_counted_behind_a_member_that_gave_nothing_back(suspects: Suspects) -> None:
    assert not suspects.counts(delivery(5, 0))
    assert suspects.counts(delivery(5, 1))
    assert suspects.counts(delivery(6, 1))


def test_suspects_run_one_at_a_time_and_hold_up_no_other(suspects: Suspects) -> None:
    suspects.watch("orders", 2, [5])
    assert suspects.admit(delivery(5, 1))
    assert [suspects.admit(delivery(*place)) for place in ((7, 1), (5, 2))] == [False, False]
    assert suspects.admit(delivery(5, 1)), "another thread goes on with it"
    for place in ((5, 0), (6, 1)):
        assert suspects.admit(delivery(*place))
        assert not suspects.leave(delivery(*place))
    assert suspects.leave(delivery(5, 1)), "another one may run now"
    assert suspects.admit(delivery(7, 1))
    assert not suspects.admit(delivery(5, 2))


def test_counting_ends_after_so_many_runs_but_for_suspects(suspects: Suspects) -> None:
    for offset in range(10, 10 + WATCHED):
        assert suspects.counts(delivery(offset, 1))
        suspects.ran(delivery(offset, 1))
    assert not suspects.counts(delivery(9999, 1))
    assert suspects.counts(delivery(7, 1)), "it waits behind others of its key, for example"


def test_a_partition_that_was_given_back_meanwhile_is_not_counted(suspects: Suspects) -> None:
    assert suspects.admit(delivery(5, 1))
    suspects.watch("orders", 1, None)
    assert not suspects.counts(delivery(5, 1))
    assert suspects.leave(delivery(5, 1))
    suspects.watch("orders", 1, [7])
    assert suspects.admit(delivery(7, 1))
