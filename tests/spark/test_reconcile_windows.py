"""Reconcile meets records that are not of its window, in topics that it need not have looked at."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outbox_etl.errors import SettingsError
from outbox_etl.reconcile import findings
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.plain_inserts import connect, insert
from tests.support.publications import value
from tests.support.recorded_by_hand import MakeWorld, Scene, Sent, essence, told
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS
from tests.support.stopped_lanes import go_on, stop_lane
from tests.support.waiting import wait_until

pytestmark = MARKS


def half(scene: Scene) -> Sent:
    """A half message, that nobody has decided."""
    message_id = insert(scene.world.conn, scene.topic, "h", "h", state="UNKNOWN", producer_group="g")
    return Sent(message_id, 0, "h", "h")


def make_anew(scene: Scene) -> None:
    """Delete a topic and make one of that name."""
    admin = AdminClient({"bootstrap.servers": scene.world.bootstrap_servers, "log_level": 0})
    if scene.topic in admin.list_topics(timeout=30).topics:
        admin.delete_topics([scene.topic])[scene.topic].result(30)

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(scene.topic, num_partitions=1)])[scene.topic].result(30)
        except KafkaException:
            return False  # the old one is still being deleted
        return True

    wait_until(made, "the topic to be gone")


@pytest.mark.gate
def test_a_deleted_topic_is_accepted_by_its_name_and_hides_no_loss_elsewhere(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    lost, kept = (Scene(world, make_topic(partitions=1)) for _ in range(2))
    lost.publish(lost.write(3))
    kept.publish(kept.write(3))
    world.export()
    admin = AdminClient({"bootstrap.servers": world.bootstrap_servers, "log_level": 0})
    admin.delete_topics([lost.topic])[lost.topic].result(30)
    wait_until(lambda: lost.topic not in admin.list_topics(timeout=30).topics, "the topic to be gone")
    refused = world.reconcile()
    assert [kind for kind, *_ in told(refused.found)] == ["missing"] * 3
    assert (
        f"there is no topic {lost.topic}: if it was deleted, --accept-gone {lost.topic} accepts that"
        in world.said
    )
    with pytest.raises(SettingsError, match=f"no such topic; did you mean {lost.topic}"):
        world.reconcile(accept_gone={f"{lost.topic}x"})

    accepted = world.reconcile(accept_gone={lost.topic})
    assert (accepted.problems, accepted.certified, accepted.notes["gone_and_accepted"]) == (0, True, 3)
    assert f'"gone":{{"{lost.topic}":3}}' in world.certificates()[-1][5]
    assert essence(world.reconcile_by_spark(everything=True, accept_gone={lost.topic})) == essence(accepted)

    sent = kept.write(2, start=3)
    kept.record(sent, kept.produce(sent[0]))
    make_anew(lost)
    lost.publish(lost.write(1, start=3))
    world.export()
    missing = [("missing", sent[1].message_id, 4)]
    assert told(world.reconcile().found) == missing, "the certificate stands, and the new topic is verified"
    again = world.reconcile(everything=True, accept_gone={lost.topic})
    assert told(again.found) == missing
    assert again.notes["gone_and_accepted"] == 3


def test_a_backlog_of_another_window_is_looked_at_to_its_end(
    module_worlds: MakeWorld, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "CAP", 2)
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    scene.publish(scene.write(1))
    backlog = scene.write(5, start=1)
    world.export()
    assert world.reconcile().problems == 0
    newer = scene.write(1, start=6)
    world.export()
    scene.publish([*backlog, *newer])  # after the watermark, before Kafka is read
    outcome = world.reconcile()
    assert (outcome.problems, told(outcome.found)) == (0, [])
    assert outcome.notes["of_other_windows"] == len(backlog)
    world.export()
    assert world.reconcile().problems == 0


def test_messages_that_were_overtaken_are_looked_at_to_the_last(
    module_worlds: MakeWorld, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "CAP", 2)
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    with connect(world.dsn) as slow, slow.transaction():
        late = scene.write(5, conn=slow)
        scene.publish(scene.write(1, start=5))
    scene.publish(late)
    world.export()
    outcome = world.reconcile()
    assert (outcome.problems, outcome.notes["overtaken"]) == (0, len(late))


def test_a_record_in_a_topic_that_its_message_was_not_sent_to_is_misplaced(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    mine, other = Scene(world, make_topic(partitions=1)), Scene(world, make_topic(partitions=1))
    sent = mine.write(1)
    mine.publish(sent)
    world.export()
    assert world.reconcile().problems == 0
    offset = other.produce(*sent)  # the offset that it has in its own topic
    other.publish(other.write(1))
    world.export()
    assert told(world.reconcile().found) == [("misplaced", sent[0].message_id, offset)]


def test_a_topic_is_read_in_which_nothing_was_published(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    world.conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 1)", [scene.topic])
    never = half(scene)
    offset = scene.produce(never)
    world.export()
    assert told(world.reconcile().found) == [("not_committed", never.message_id, offset)]


@pytest.mark.parametrize("by_way_of", [None, "DEAD"])
def test_a_message_given_up_in_doubt_may_be_in_kafka_and_no_other_that_was_given_up(
    module_worlds: MakeWorld, make_topic: MakeTopic, by_way_of: str | None
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    (given_up,) = scene.write(1)
    offset = scene.produce(given_up)
    id_ = value(world.conn, "SELECT id FROM outbox.message WHERE message_id = %s", [given_up.message_id])
    lane = stop_lane(world.conn, id_, in_doubt=by_way_of is None)
    for state in filter(None, (by_way_of, "SKIPPED")):
        world.conn.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [state, id_])
    go_on(world.conn, lane)
    scene.publish(scene.write(1))
    world.export()
    outcome = world.reconcile()
    expected = [] if by_way_of is None else [("not_committed", given_up.message_id, offset)]
    assert (told(outcome.found), outcome.notes.get("given_up_in_doubt", 0)) == (expected, 1 - len(expected))


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    scene.publish(scene.write(5))
    world.export()
    assert world.reconcile().problems == 0
    make_anew(scene)
    never = half(scene)
    assert scene.produce(never) == 0
    world.export()
    outcome = world.reconcile()
    assert told(outcome.found) == [("not_committed", never.message_id, 0)]
    assert outcome.notes["partitions_made_anew"] == 1


def test_a_message_id_that_was_sent_twice_is_told_of_postgresql(
    module_worlds: MakeWorld, make_topic: MakeTopic
) -> None:
    world = module_worlds()
    scene = Scene(world, make_topic(partitions=1))
    own = str(uuid.uuid4())
    for window in range(2):
        given = insert(world.conn, scene.topic, "k", f"body {window}", message_id=str(uuid.uuid4()))
        # The table refuses an id that is taken; here it was taken by a restore, or while the guards were off.
        world.conn.execute("UPDATE outbox.message SET message_id = %s WHERE message_id = %s", [own, given])
        scene.publish(scene.write(1, start=window))
        world.export()
        outcome = world.reconcile()
        assert outcome.problems == 0
        twice = [(each.kind, each.store, each.message_id) for each in outcome.allowed]
        assert twice == [("doubled", "postgres", own)] * window
    strict = world.reconcile(everything=True, exactly_once=True)
    assert [(each.kind, each.store, each.message_id) for each in strict.found] == [
        ("doubled", "postgres", own)
    ]


def test_a_remark_counts_once_its_message_is_decided(module_worlds: MakeWorld, make_topic: MakeTopic) -> None:
    world = module_worlds()
    never = half(Scene(world, make_topic(partitions=1)))
    note = "UPDATE outbox.message SET remark = %s WHERE message_id = %s"
    world.conn.execute(note, ["the listener raised", never.message_id])
    world.export()
    world.conn.execute(note, ["and raised again", never.message_id])
    outcome = world.reconcile()
    assert (outcome.problems, told(outcome.found)) == (0, [])
    decided = "UPDATE outbox.message SET state = 'ROLLED_BACK', remark = %s WHERE message_id = %s"
    world.conn.execute(decided, ["by hand", never.message_id])
    world.export()
    assert world.reconcile(everything=True).problems == 0
    rows = world.target.read(MESSAGE_HISTORY).where(f"message_id = '{never.message_id}'").collect()
    assert [row["remark"] for row in rows] == ["by hand"]
