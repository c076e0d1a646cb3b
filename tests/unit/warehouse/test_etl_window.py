"""A warehouse goes on from the database that it was filled from: no other of its cluster, no older state of it."""

from __future__ import annotations

import pytest

from outbox_etl.errors import OtherClusterError, SourceError
from outbox_etl.source.window import Cluster, Horizon, Watermark, again, following


def now(database: int, *, wal: int = 0, standby: bool = False) -> Horizon:
    return Horizon(Cluster("7", 1, database), hi=200, top=20, next=210, wal=wal, standby=standby)


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


def test_the_clusters_log_is_part_of_the_watermark() -> None:
    mark = following(None, now(5, wal=4_000)).watermark()
    assert (mark.wal, Watermark.of(mark.properties())) == (4_000, mark)


def test_a_cluster_whose_log_is_shorter_than_it_was_is_refused_until_a_rebase() -> None:
    mark = Watermark(200, 10, Cluster("7", 1, 5), wal=4_000)
    assert following(mark, now(5, wal=4_000)).lo == 200
    for choose in (following, again):
        with pytest.raises(OtherClusterError, match=r"4000 bytes .* 3999 bytes .* --rebase"):
            choose(mark, now(5, wal=3_999))
    assert again(mark, now(5, wal=3_999), rebase=True).watermark().wal == 3_999


def test_a_watermark_of_before_the_log_was_written_goes_on_and_gets_its_position() -> None:
    mark = Watermark(100, 10, Cluster("7", 1, 5))
    assert "outbox.wal-position" not in mark.properties()
    assert following(mark, now(5, wal=4_000)).watermark().wal == 4_000


@pytest.mark.parametrize(
    "mark", [Watermark(300, 10, Cluster("7", 1, 5)), Watermark(200, 10, Cluster("7", 1, 5), wal=4_000)]
)
def test_a_standby_that_is_behind_is_let_catch_up_and_never_rebased_from(mark: Watermark) -> None:
    behind = now(5, wal=3_999, standby=True)
    with pytest.raises(SourceError, match="catch up"):
        following(mark, behind)
    for rebase in (False, True):
        with pytest.raises(SourceError, match="catch up"):
            again(mark, behind, rebase=rebase)
