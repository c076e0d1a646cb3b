"""A warehouse goes on from the database that it was filled from, and from no other one of its cluster."""

from __future__ import annotations

import pytest

from outbox_etl.errors import OtherClusterError
from outbox_etl.window import Cluster, Horizon, Watermark, again, following


def now(database: int) -> Horizon:
    return Horizon(Cluster("7", 1, database), hi=200, top=20, next=210)


def test_another_database_of_the_cluster_is_refused_until_a_rebase() -> None:
    mark = Watermark(100, 10, Cluster("7", 1, 5))
    assert following(mark, now(5)).lo == 100
    with pytest.raises(OtherClusterError, match=r"another database .* is 5, this one's 6.* --rebase"):
        following(mark, now(6))
    with pytest.raises(OtherClusterError):
        again(mark, now(6))
    window = again(mark, now(6), rebase=True)
    assert window.watermark().cluster.database == 6


def test_the_database_is_part_of_the_watermark() -> None:
    mark = Watermark(100, 10, Cluster("7", 1, 5))
    assert Watermark.of(mark.properties()) == mark


def test_a_watermark_of_before_databases_were_written_goes_on_and_gets_one() -> None:
    old = {
        name: value
        for name, value in Watermark(100, 10, Cluster("7", 1, 5)).properties().items()
        if name != "outbox.database"
    }
    mark = Watermark.of(old)
    assert mark is not None
    window = following(mark, now(6))
    assert window.lo == 100
    assert Watermark.of(window.watermark().properties()) == Watermark(200, 20, Cluster("7", 1, 6))
