"""Lists of what is read apart: when they are closed, and begun again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from outbox_relay.publisher.core.values import Read
from outbox_relay.publisher.finder import Slice
from outbox_relay.publisher.hands.reads import Reads
from outbox_relay.publisher.read_ahead import ListAhead
from outbox_relay.publisher.snapshot import Difference, Snapshot


@pytest.mark.parametrize(("is_open", "closed"), [(True, 1), (False, 0)])
def test_a_list_that_is_taken_is_not_closed_once_more(*, is_open: bool, closed: int) -> None:
    submitted: list[Any] = []
    pool = cast("Any", SimpleNamespace(submit=submitted.append))
    ahead = ListAhead(
        pool,
        cast("Any", None),
        Difference(Snapshot(1, 1), Snapshot(2, 2), is_partial=False),
        Slice(frozenset({1})),
    )
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
    ahead = SimpleNamespace(
        take=take, tables=dropped if noticed else left, begin=lambda tables, size: None, is_ready=True
    )
    reads = Reads(cast("Any", None), cast("Any", partitions), cast("Any", None), frozenset({1}))
    reads._lists[7] = cast("Any", ahead)
    read = Read("list", group=7, base=Snapshot(10, 10), until=Snapshot(20, 20), rows=10, size=1_000)
    if noticed:
        assert reads.execute(read) is None, "its next page is begun with the partitions that there are"
    else:
        with pytest.raises(psycopg.errors.UndefinedTable):
            reads.execute(read)
