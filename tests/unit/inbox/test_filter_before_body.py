"""A message that a group does not subscribe to is skipped by its headers: its key and its body are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox.inbox.assignments import Assignments
from outbox.inbox.core.partitions import Limits
from outbox.inbox.messages import Source
from outbox.inbox.poller import Poller
from tests.support.members import member_of


class Record:
    """A message of the client of Kafka whose body must not be read, unless it may be."""

    def __init__(self, offset: int, tags: bytes, *, is_read: bool = False) -> None:
        self._offset, self._tags, self._is_read = offset, tags, is_read

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return [("outbox-tags", self._tags)]

    def key(self) -> bytes:
        assert self._is_read, "the key was read"
        return b"k"

    def value(self) -> bytes:
        assert self._is_read, "the body was read"
        return b"body"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


@pytest.fixture
def assignments() -> Assignments:
    assignments = Assignments(orderly=False, limits=Limits())
    with assignments as partitions:
        partitions.open(("orders", 0), Source(1, "c/t"), 0, 0)
    return assignments


@pytest.fixture
def poller(assignments: Assignments) -> Iterator[Poller]:
    kafka = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    member = member_of("points", {"orders": "paid || sent"}, kafka=kafka)
    keeper: Any = None
    poller = Poller(member, assignments, keeper)
    yield poller
    poller.client.close()


@pytest.mark.feature("S-83", "S-88")
def test_a_message_with_other_tags_is_skipped_unread_and_its_offset_moves(
    assignments: Assignments, poller: Poller
) -> None:
    for record in (Record(0, b"new"), Record(1, b"new||paid", is_read=True), Record(2, b"unpaid")):
        poller._accept(record)  # type: ignore[arg-type]
    [taken] = assignments.take(0)
    assert (taken[1].message.offset, taken[1].message.body) == (1, b"body")
    assert assignments.take(0) == []
    with assignments as partitions:
        assert partitions.skipped == 2
        assert [each.offset for each in partitions.offsets()] == [1], "what is not done holds the offset"
        partitions.finish(*taken)
        assert [each.offset for each in partitions.offsets()] == [3]
