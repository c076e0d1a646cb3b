"""Reconcile by DuckDB where merges have marked rows of the warehouse as deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.recorded_by_hand import Scene, World, essence
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = [*MARKS, pytest.mark.gate]


def test_a_window_over_marked_rows_is_compared_by_duckdb_as_by_spark(
    module_worlds: Callable[[str], World], make_topic: MakeTopic
) -> None:
    world = module_worlds("iceberg")
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(12)
    world.export()
    assert world.reconcile().certified
    scene.record(sent, scene.produce(*sent))
    late = scene.write(4)
    scene.record(late, scene.produce(*late))
    world.export()
    ids = [each.message_id for each in sent]
    for text in (
        f"UPDATE {{history}} SET offset = offset + 1 WHERE message_id = '{ids[0]}'",
        f"DELETE FROM {{history}} WHERE message_id = '{ids[1]}'",
        f"INSERT INTO {{history}} SELECT * FROM {{history}} WHERE message_id = '{ids[2]}'",
        f"UPDATE {{history}} SET body = binary('x') WHERE message_id = '{ids[3]}'",
        f"UPDATE {{history}} SET status = 'LOST' WHERE message_id = '{ids[4]}'",
        f"UPDATE {{history}} SET offset = offset + 1 WHERE message_id = '{late[0].message_id}'",
    ):
        world.sql(text)
    files = world.target.files(MESSAGE_HISTORY, None)
    assert files is not None
    assert files.marked
    for everything in (False, True):
        found = world.reconcile(everything=everything)
        assert found.problems
        assert essence(found) == essence(world.reconcile_by_spark(everything=everything))
    assert world.left_to_spark() == []
