"""Reconcile goes on window after window; what it proves is written down, and what it finds ends it with 1."""

from __future__ import annotations

import json

import pytest

from outbox_etl.errors import SourceError
from tests.support.plain_inserts import insert_numbered, wait_published
from tests.support.recorded_by_hand import MakeWorld, Scene, told
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS


@pytest.mark.gate
@pytest.mark.feature("H-02")
def test_what_a_relay_published_is_proven_window_after_window(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world, topic = module_worlds(), make_topic(partitions=4)
    with RelayProcess(world.dsn, world.bootstrap_servers).wait_until_running():
        insert_numbered(world.conn, topic, 500)
        wait_published(world.conn)
        world.export()
        first = world.reconcile()
        insert_numbered(world.conn, topic, 300, start=500)
        wait_published(world.conn)
        world.export()
        second = world.reconcile()
    nothing = world.reconcile()
    everything = world.reconcile(everything=True)
    for outcome in (first, second, nothing, everything):
        assert outcome.problems == 0, outcome.found
        assert outcome.exit_code == 0
    assert (first.messages, second.messages, everything.messages) == (500, 300, 800)
    assert sum(row["kafka"] for row in everything.partitions) == 800
    for row in everything.partitions:
        assert row["postgres_checksum"] == row["kafka_checksum"] == row["warehouse_checksum"]
    assert second.window_lo == first.window_hi
    proven = [(first.window_lo, first.window_hi), (second.window_lo, second.window_hi), (0, second.window_hi)]
    certificates = [(lo, hi, problems) for lo, hi, _, problems, *_ in world.certificates()]
    assert certificates == [(lo, hi, 0) for lo, hi in proven]
    assert {target for *_, target, _ in world.certificates()} == {world.settings.target}


@pytest.mark.gate
@pytest.mark.feature("H-02")
def test_one_lost_message_alone_is_one_problem_and_the_next_run_asks_again(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(3)
    scene.record(sent, scene.produce(*sent[:2]))
    world.export()
    outcome = world.reconcile()
    assert told(outcome.found) == [("missing", sent[2].message_id, 2)]
    assert (outcome.problems, outcome.exit_code, outcome.certified) == (1, 1, False)
    scene.produce(sent[2])  # as an operator would, with the record as it was
    assert (world.reconcile().problems, world.reconcile().exit_code) == (0, 0)
    assert [problems for _, _, _, problems, *_ in world.certificates()] == [1, 0]


def test_a_duplicate_after_a_crash_stops_retention_only_under_exactly_once(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(3)
    scene.publish(sent)
    second = scene.produce(sent[1])
    world.export()
    outcome = world.reconcile()
    assert (outcome.problems, outcome.exit_code, outcome.certified) == (0, 0, True)
    assert told(outcome.allowed) == [("doubled", sent[1].message_id, second)]
    assert "1 record" not in outcome.allowed[0].detail
    assert any(sent[1].message_id in line for line in outcome.lines())
    checksum = json.loads(world.certificates()[0][5])
    assert checksum == {"sums": dict(outcome.sums), "kafka": {scene.topic: {"0": 4}}, "doubled": 1}
    third = scene.produce(sent[2])  # after its window was proven
    scene.publish(scene.write(1, start=3))
    world.export()
    strict = world.reconcile(exactly_once=True)
    assert told(strict.found) == [("doubled", sent[2].message_id, third)]
    assert strict.exit_code == 1
    assert world.reconcile().exit_code == 0
    assert [problems for _, _, _, problems, *_ in world.certificates()] == [0, 1, 0]


def test_what_a_dead_relay_did_not_record_is_read_with_its_successors_publications(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    scene.publish(scene.write(1))
    sent = scene.write(2, start=1)
    scene.produce(sent[0])
    world.export()
    first = world.reconcile()
    assert (first.problems, first.notes["not_judged_yet"]) == (0, 1)
    # From where the first verification ended there is B A B now, and with what it had read: A B A B.
    scene.produce(sent[1])
    scene.publish(sent)
    world.export()
    second = world.reconcile()
    assert (second.problems, told(second.found)) == (0, [])
    doubled = [("doubled", each.message_id, offset) for each, offset in zip(sent, (3, 4), strict=True)]
    assert told(second.allowed) == sorted(doubled)


def test_a_place_behind_an_open_transaction_is_not_taken_for_lost(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(2)
    with scene.transaction(sent[0]):
        scene.publish(sent)
        world.export()
        with pytest.raises(
            SourceError, match=r"cannot be read from offset 0 on: another producer has a trans"
        ):
            world.reconcile()
    assert world.reconcile().exit_code == 0
    assert [problems for _, _, _, problems, *_ in world.certificates()] == [0]
