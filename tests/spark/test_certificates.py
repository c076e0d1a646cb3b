"""A certificate speaks for one warehouse and for what was in sight; what it cannot speak for any more is told, once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outbox_etl.errors import OtherClusterError, SourceError, TargetError
from outbox_etl.export import backfill, export
from outbox_etl.failures import explained
from outbox_etl.reconcile import certificate
from outbox_etl.reconcile.certificate import Certificate
from outbox_etl.reconcile.request import ReconcileRequest
from outbox_etl.reconcile.revocation import ABOVE_ALL_XIDS
from outbox_etl.reconcile.run import reconcile
from outbox_etl.source.reader import Ids, Source
from outbox_local.stack.api import Stack
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import connect
from tests.support.promotion import promote
from tests.support.recorded_by_hand import MakeWorld, Scene, World
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS
KINDS = ("message", "publication", "event")


def detach(world: World, *kinds: str) -> None:
    """Take the first range of ids out of sight."""
    for kind in kinds or KINDS:
        world.conn.execute(f"ALTER TABLE outbox.{kind} DETACH PARTITION outbox.{kind}_p000000000000001")


def attach(world: World, *kinds: str) -> None:
    for kind in kinds or KINDS:
        world.conn.execute(
            f"ALTER TABLE outbox.{kind} ATTACH PARTITION outbox.{kind}_p000000000000001 FOR VALUES FROM (1) TO (1001)"
        )


def at(world: World, words: str, happens: Callable[[], None]) -> Callable[[str], None]:
    """What a run says is listened to: at these words something happens."""

    def say(text: str) -> None:
        world.said.append(text)
        if words in text:
            happens()

    return say


def given(world: World) -> list[tuple[int, int, int]]:
    return [(lo, hi, problems) for lo, hi, _, problems, *_ in world.certificates()]


@pytest.fixture
def scene(module_worlds: MakeWorld, make_topic: MakeTopic) -> Scene:
    """Three messages of one key, published, in ranges of 1,000 ids."""
    world = module_worlds()
    narrow_partitions(world.conn)
    scene = Scene(world, make_topic(partitions=1))
    scene.publish(scene.write(3))
    return scene


def test_no_run_passes_by_a_range_that_is_out_of_sight(scene: Scene) -> None:
    world = scene.world
    detach(world, "event")
    with pytest.raises(SourceError, match=r"event_p000000000000001 is detached, .* attach it again"):
        world.export()
    attach(world, "event")
    world.conn.execute(
        "COMMENT ON TABLE outbox.message_p000000000000001 IS 'outbox history drop: ids up to 1001'"
    )
    detach(world)
    with pytest.raises(
        SourceError, match=r"is detached, .*an `outbox history drop` is running or was interrupted"
    ):
        world.export()
    attach(world)

    def away_for_a_moment() -> None:
        detach(world)
        attach(world)

    with pytest.raises(SourceError, match="or detached for a time"):
        export(world.spark, world.settings, world.target, at(world, "publications after", away_for_a_moment))
    mark = world.target.watermark()
    assert mark is not None
    assert mark.hi == 0
    world.export()
    detach(world)
    with pytest.raises(SourceError, match="is detached"):
        world.reconcile()
    attach(world)
    request = ReconcileRequest(world.bootstrap_servers)
    with pytest.raises(SourceError, match="or detached for a time"):
        reconcile(
            world.spark, world.settings, world.target, request, at(world, "Kafka read", away_for_a_moment)
        )
    assert given(world) == []
    assert world.reconcile().exit_code == 0
    held = world.conn.execute("SELECT held::text, warehouse FROM outbox.certificate").fetchone()
    assert held == ("{[1,4001)}", world.target.identity())


def test_certificates_of_a_lost_warehouse_are_taken_back_and_the_next_starts_again(
    scene: Scene,
) -> None:
    world = scene.world
    world.export()
    assert world.reconcile().exit_code == 0
    first = world.target.identity()
    shutil.rmtree(world.warehouse)
    for _ in range(2):
        with pytest.raises(TargetError, match="the warehouse is empty"):
            world.reconcile()
    assert given(world)[1:] == [(0, ABOVE_ALL_XIDS, 1)], "taken back once"
    assert any("taken back: the warehouse is empty or gone" in text for text in world.said)
    world.export()
    assert world.target.identity() not in {"", first}
    again = world.reconcile()
    assert (again.window_lo, again.problems, again.messages, again.exit_code) == (0, 0, 3, 1)
    assert "were taken back: the warehouse is empty" in "\n".join(again.lines())
    assert world.reconcile().exit_code == 0
    # The next time it is the export that notices.
    shutil.rmtree(world.warehouse)
    world.export()
    assert given(world)[3:] == [(0, ABOVE_ALL_XIDS, 1)]
    assert "another warehouse" in world.reconcile().revoked


def test_a_warehouse_of_an_older_state_is_verified_from_the_first_transaction_on(
    scene: Scene, tmp_path: Path
) -> None:
    world, backup = scene.world, tmp_path / "backup"
    world.export()
    assert world.reconcile().exit_code == 0
    shutil.copytree(world.warehouse, backup)
    for name in ("by reconcile", "by the export"):
        scene.publish(scene.write(1, start=len(world.said)))
        world.export()
        assert world.reconcile().exit_code == 0
        shutil.rmtree(world.warehouse)
        shutil.copytree(backup, world.warehouse)
        if name == "by the export":
            world.export()
        restored = world.reconcile()
        assert (restored.window_lo, restored.problems, restored.exit_code) == (0, 0, 1), name
        assert "it is an older state" in restored.revoked
        world.export()
        assert world.reconcile().exit_code == 0


def test_an_iceberg_warehouse_is_known_by_its_table(module_worlds: MakeWorld, make_topic: MakeTopic) -> None:
    world = module_worlds("iceberg")
    assert world.target.identity() == ""
    scene = Scene(world, make_topic(partitions=1))
    scene.publish(scene.write(1))
    world.export()
    first = world.target.identity()
    scene.publish(scene.write(1, start=1))
    world.export()
    assert world.target.identity() == first != ""
    assert world.reconcile().exit_code == 0
    for table in ("message_history", "publications", "transaction_events"):
        world.sql(f"DROP TABLE outbox.outbox.{table} PURGE")
    world.export()
    assert world.target.identity() != first
    assert given(world)[1:] == [(0, ABOVE_ALL_XIDS, 1)]


def test_history_dropped_before_it_was_verified_is_a_problem_until_it_is_accepted(scene: Scene) -> None:
    world = scene.world
    world.export()
    assert world.reconcile().exit_code == 0
    proven = scene.write(1, start=3)
    scene.publish(proven)
    world.conn.execute("SELECT setval('outbox.position', 1001, false)")
    scene.publish(scene.write(1, start=4))
    world.export()
    detach(world)
    for kind in KINDS:  # as another target's certificates allow
        world.conn.execute(f"DROP TABLE outbox.{kind}_p000000000000001")
    outcome = world.reconcile()
    assert {each.kind for each in outcome.found} == {"unverified"}
    assert {each.message_id for each in outcome.found} == {proven[0].message_id, None}
    assert (outcome.problems, outcome.exit_code) == (2, 1), "the message and its publication"
    accepted = world.reconcile(accept_dropped=True)
    assert (accepted.problems, accepted.exit_code) == (0, 0)
    assert accepted.notes["never_verified_and_accepted"] == 2
    assert '"unverified":2' in world.certificates()[-1][5]
    # What was proven while it was there needs no acceptance, whatever is verified again.
    assert world.reconcile(everything=True).problems == 0


def test_certificates_are_written_and_read_without_a_job_of_spark(scene: Scene) -> None:
    world, context = scene.world, scene.world.spark.sparkContext
    source = Source(world.spark, world.settings)
    cluster, target = source.cluster(), "it's a ?, a $1 and a {lo}"
    given = Certificate(
        7,
        ABOVE_ALL_XIDS,
        12,
        3,
        {"messages": "0f"},
        {"t'": {"0": 5}},
        doubled=2,
        warehouse="ü'",
        held=(Ids(1, 9), Ids(9, 20)),
    )
    before = datetime.now(UTC) - timedelta(hours=1)
    context.setJobGroup("certificates", "")
    certificate.write(source, target, cluster, given)
    [found] = certificate.read(source, target)
    assert before < found.verified_at < before + timedelta(hours=2)
    assert replace(found, verified_at=given.verified_at, xid=0) == replace(given, held=(), cluster=cluster)
    held = world.conn.execute("SELECT held::text FROM outbox.certificate").fetchone()
    assert held == ("{[1,20)}",)
    assert context.statusTracker().getJobIdsForGroup("certificates") == []


def test_a_promotion_during_verification_certifies_nothing_until_a_rebase(
    small_spark: SparkSession,
    private_stack: Stack,
    make_private_database: MakeDatabase,
    make_private_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    place = tmp_path / "warehouse"
    world = World(make_private_database(), private_stack.bootstrap_servers, small_spark, place)
    narrow_partitions(world.conn)
    scene = Scene(world, make_private_topic(partitions=1))
    scene.publish(scene.write(3))
    world.conn.execute("SELECT setval('outbox.position', 1001, false)")
    scene.publish(scene.write(1, start=3))
    world.export()
    assert world.reconcile().exit_code == 0
    [proven] = given(world)
    detach(world)
    for kind in KINDS:  # as its certificate allows
        world.conn.execute(f"DROP TABLE outbox.{kind}_p000000000000001")
    scene.publish(scene.write(1, start=4))
    world.export()
    # A client whose address leads to whoever is the primary: what the lost one had is certified to the new one.
    request = ReconcileRequest(world.bootstrap_servers)
    say = at(world, "Kafka read", lambda: promote(private_stack))
    with pytest.raises(Exception, match="a session came to a server on timeline 2") as raised:
        reconcile(world.spark, world.settings, world.target, request, say)
    told = explained(raised.value)
    assert isinstance(told, SourceError)
    assert "a standby was promoted meanwhile" in str(told)
    world.conn.close()
    world.conn = connect(world.dsn)
    assert given(world) == [proven]
    with pytest.raises(OtherClusterError, match="`outbox etl backfill --rebase`"):
        world.reconcile()
    backfill(world.spark, world.settings, world.target, world.said.append, rebase=True)
    assert given(world) == [proven, (0, ABOVE_ALL_XIDS, 1)]
    again = world.reconcile()
    # What was dropped before was proven, on whichever timeline.
    assert (again.window_lo, again.problems, again.found, again.certified) == (0, 0, (), True)
    assert "a rebase" in again.revoked
    assert world.reconcile().exit_code == 0
    world.conn.close()
