"""Reconcile after a backfill: one that died, and one that went on after a fail-over that lost messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outbox_etl.export import backfill, export
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.bare_reader import narrow_partitions
from tests.support.export_runs import KilledError, Watched, kill
from tests.support.recorded_by_hand import MakeWorld, Scene, Sent, World
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS


def go_to(world: World, id_: int) -> None:
    """Let the next message have this id."""
    world.conn.execute("SELECT setval('outbox.position', %s, false)", [id_])


def lose(world: World, *messages: Sent) -> None:
    """Take messages out of PostgreSQL, with their publications and events, as a fail-over does."""
    ids = [message.message_id for message in messages]
    positions = [message.position for message in messages]
    with world.conn.transaction():
        world.conn.execute("SET LOCAL session_replication_role = replica")
        world.conn.execute("DELETE FROM outbox.event WHERE message_id = ANY (%s::uuid[])", [ids])
        world.conn.execute("DELETE FROM outbox.message WHERE message_id = ANY (%s::uuid[])", [ids])
        world.conn.execute("DELETE FROM outbox.publication WHERE positions && %s::bigint[]", [positions])


def publish_each(scene: Scene) -> tuple[Sent, Sent]:
    """Two messages, each in a publication of its own: one can be lost without the other."""
    one, other = scene.write(2)
    scene.publish([one])
    scene.publish([other])
    return one, other


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_what_a_failover_lost_is_told_and_neither_a_problem_nor_taken_for_dropped(
    module_worlds: MakeWorld, make_topic: MakeTopic, form: str
) -> None:
    world = module_worlds(form)
    narrow_partitions(world.conn)
    scene = Scene(world, make_topic(partitions=1))
    sent = {}
    for name, id_ in {"kept": 1, "dropped": 1001, "held": 2001, "lost": 2002, "ahead": 3001}.items():
        go_to(world, id_)
        sent[name] = scene.write(1)[0]
        scene.publish([sent[name]])
    world.conn.execute(
        "INSERT INTO outbox.event (id, message_id, kind, answer, actor) "
        "SELECT id, message_id, 'check', 'COMMIT', 'test' FROM outbox.message"
    )
    world.export()
    assert world.reconcile().problems == 0
    lose(world, sent["lost"], sent["ahead"])
    for kind in ("message", "publication", "event"):
        world.conn.execute(f"DROP TABLE outbox.{kind}_p{1001:015d}")
    go_to(world, 2010)
    scene.publish(scene.write(1))
    backfill(world.spark, world.settings, world.target, world.said.append, rebase=True)
    rows = world.target.read(MESSAGE_HISTORY).select("message_id", "status").collect()
    status = {row["message_id"]: row["status"] for row in rows}
    assert {name: status[message.message_id] for name, message in sent.items()} == {
        "kept": "PUBLISHED", "dropped": "PUBLISHED", "held": "PUBLISHED", "lost": "LOST", "ahead": "LOST",
    }  # fmt: skip
    outcome = world.reconcile(everything=True)
    assert (outcome.problems, outcome.found) == (0, ())
    told = {(each.kind, each.store, each.message_id) for each in outcome.allowed}
    assert told == {("lost", "warehouse", sent[name].message_id) for name in ("lost", "ahead")}
    assert (outcome.notes["lost_in_a_failover"], outcome.notes["publications_of_lost_messages"]) == (2, 2)


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_what_a_backfill_that_died_has_merged_is_not_altered(
    module_worlds: MakeWorld, make_topic: MakeTopic, form: str
) -> None:
    world = module_worlds(form)
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(6)
    world.export()
    scene.publish(sent)
    settings = replace(world.settings, slice_rows=3)
    target = Watched(world.target, 2, kill, after=True)
    with pytest.raises(KilledError):
        backfill(world.spark, settings, target, world.said.append, rebase=False)
    rows = world.target.read(MESSAGE_HISTORY).select("status").collect()
    assert {row["status"] for row in rows} == {"PUBLISHED", "COMMITTED"}, "it died half-way"
    outcome = world.reconcile()
    assert (outcome.problems, outcome.found) == (0, ())
    world.export()
    assert world.reconcile().problems == 0


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_what_a_failover_lost_is_told_when_the_first_export_had_died(
    module_worlds: MakeWorld, make_topic: MakeTopic, form: str
) -> None:
    world = module_worlds(form)
    scene = Scene(world, make_topic(partitions=1))
    kept, lost = publish_each(scene)
    target = Watched(world.target, 2, kill, after=True)
    with pytest.raises(KilledError):
        export(world.spark, world.settings, target, world.said.append)
    rows = world.target.read(MESSAGE_HISTORY).select("status").collect()
    assert [row["status"] for row in rows] == ["PUBLISHED"] * 2, "it died with its rows written"
    lose(world, lost)
    go_to(world, lost.position + 1)
    [instead] = scene.write(1)
    backfill(world.spark, world.settings, world.target, world.said.append, rebase=True)
    rows = world.target.read(MESSAGE_HISTORY).select("message_id", "status").collect()
    assert {row["message_id"]: row["status"] for row in rows} == {
        kept.message_id: "PUBLISHED", lost.message_id: "LOST", instead.message_id: "COMMITTED",
    }  # fmt: skip
    scene.publish([instead])
    world.export()
    outcome = world.reconcile(everything=True)
    assert (outcome.problems, outcome.found) == (0, ())


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_message_at_the_position_of_a_lost_one_has_its_own_publication_only(
    module_worlds: MakeWorld, make_topic: MakeTopic, form: str
) -> None:
    world = module_worlds(form)
    scene = Scene(world, make_topic(partitions=1))
    kept, lost = publish_each(scene)
    world.export()
    lose(world, lost)
    go_to(world, lost.position)
    [instead] = scene.write(1, start=2)

    def heal(*, rebase: bool = False) -> None:
        backfill(world.spark, world.settings, world.target, world.said.append, rebase=rebase)

    def shown() -> dict[str, tuple[str, int | None]]:
        rows = world.target.read(MESSAGE_HISTORY).select("message_id", "status", "offset").collect()
        return {row["message_id"]: (row["status"], row["offset"]) for row in rows}

    others = {kept.message_id: ("PUBLISHED", 0), lost.message_id: ("LOST", 1)}
    heal(rebase=True)
    assert shown() == {**others, instead.message_id: ("COMMITTED", None)}
    heal()
    assert shown() == {**others, instead.message_id: ("COMMITTED", None)}
    scene.publish([instead])
    world.export()
    assert shown() == {**others, instead.message_id: ("PUBLISHED", 2)}
    heal()
    assert shown() == {**others, instead.message_id: ("PUBLISHED", 2)}
    outcome = world.reconcile(everything=True)
    assert (outcome.problems, outcome.found) == (0, ())
    assert [(each.kind, each.message_id) for each in outcome.allowed] == [("lost", lost.message_id)]
