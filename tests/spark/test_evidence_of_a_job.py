"""What the job commits leaves its certificates in force; what somebody else takes away ends them, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox_etl.reconcile import certificate
from outbox_etl.reconcile.revocation import ABOVE_ALL_XIDS
from outbox_etl.source.reader import Source
from outbox_etl.warehouse.evidence import Evidence
from outbox_etl.warehouse.iceberg_state import SIGNED
from outbox_etl.warehouse.maintain import maintain
from outbox_etl.warehouse.maintain_request import MaintenanceRequest
from outbox_etl.warehouse.tables import PUBLICATIONS
from outbox_etl.warehouse.witness import Witness
from tests.support.plain_inserts import insert
from tests.support.recorded_by_hand import MakeWorld, Scene, World
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS
ALL = (0, 1 << 62)


@pytest.fixture
def scene(module_worlds: MakeWorld, make_topic: MakeTopic) -> Scene:
    """Three messages, published, verified in an Iceberg warehouse."""
    scene = Scene(module_worlds("iceberg"), make_topic(partitions=1))
    scene.publish(scene.write(3))
    scene.world.export()
    assert scene.world.reconcile().exit_code == 0
    return scene


def told(world: World) -> Evidence:
    """The evidence of the newest certificate."""
    source = Source(world.spark, world.settings)
    found = certificate.present(certificate.read(source, world.settings.target), source.cluster())
    evidence = certificate.newest_evidence(found)
    assert evidence
    return evidence


def unsigned(world: World) -> list[str]:
    """The commits to the core tables that neither say that they are of the job nor keep all rows."""
    found = []
    for each in world.target.state().tables:  # type: ignore[attr-defined]
        for snapshot in each.metadata["snapshots"]:
            summary = snapshot["summary"]
            if summary["operation"] != "replace" and not SIGNED.items() <= summary.items():
                found.append(f"{each.table.name}: {summary}")
    return found


@pytest.mark.parametrize("by_spark", [False, True])
def test_what_the_job_commits_is_signed_and_leaves_certificates_in_force(
    scene: Scene, by_spark: bool
) -> None:
    world, first = scene.world, told(scene.world)
    half = insert(world.conn, scene.topic, "h", b"half", state="UNKNOWN", producer_group="g")
    late = scene.write(1, start=3)
    with pytest.MonkeyPatch.context() as patch:
        if by_spark:
            patch.setattr("outbox_etl.warehouse.iceberg_commit.why_not", lambda *_: "it is left to Spark")
        world.export()
        world.conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK' WHERE message_id = %s", [half])
        scene.publish(late)
        world.export()
    assert Witness().doubt(first, ALL) is None
    maintain(world.spark, world.settings, world.target, MaintenanceRequest(), world.said.append)
    assert Witness().doubt(first, ALL) is None
    assert unsigned(world) == []
    outcome = world.reconcile()
    assert (outcome.exit_code, outcome.certified, outcome.window_lo > 0) == (0, True, True)
    assert told(world) != first


def test_a_lost_file_ends_the_certificates_before_the_next_window_is_verified(scene: Scene) -> None:
    world = scene.world
    [lost] = Path(world.warehouse).glob("outbox/message_history/data/**/*.parquet")
    lost.unlink()
    scene.publish(scene.write(1, start=3))
    world.export()
    with pytest.raises(Exception, match=r"."):
        world.reconcile()
    assert [row[:2] for row in world.certificates()][1:] == [(0, ABOVE_ALL_XIDS)]
    [text] = [text for text in world.said if "are taken back: " in text]
    assert f"{lost} is gone" in text


def test_a_table_rolled_back_alone_ends_the_certificates(scene: Scene) -> None:
    world = scene.world
    scene.publish(scene.write(1, start=3))
    world.export()
    assert world.reconcile().exit_code == 0
    [found] = [each for each in world.target.state().tables if each.table is PUBLICATIONS]  # type: ignore[attr-defined]
    jvm: Any = world.spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        world.spark._jsparkSession, "outbox.outbox.publications"
    )
    oldest = found.metadata["snapshots"][0]["snapshot-id"]
    table.manageSnapshots().setCurrentSnapshot(oldest).commit()
    outcome = world.reconcile()
    assert "publications was rolled back" in outcome.revoked
    assert (outcome.window_lo, outcome.exit_code, outcome.certified) == (0, 1, False)
    assert outcome.problems > 0


def test_a_change_of_somebody_else_is_verified_from_the_first_transaction_on(scene: Scene) -> None:
    world = scene.world
    world.sql("DELETE FROM {history} WHERE id = 2")
    scene.publish(scene.write(1, start=3))
    world.export()
    outcome = world.reconcile()
    assert "removed or changed rows" in outcome.revoked
    assert (outcome.window_lo, outcome.exit_code) == (0, 1)
    assert {each.kind for each in outcome.found} >= {"missing"}


def test_certificates_without_evidence_are_no_reason_for_an_alarm(scene: Scene) -> None:
    world = scene.world
    world.conn.execute('UPDATE outbox.certificate SET checksum = \'{"sums": {}, "kafka": {}}\'')
    outcome = world.reconcile()
    assert (outcome.window_lo, outcome.exit_code, outcome.certified, outcome.revoked) == (0, 0, True, "")
    assert world.reconcile().exit_code == 0
