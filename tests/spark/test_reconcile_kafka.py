"""Reconcile names what was done to one message in Kafka, one topic for each deed; what is allowed it tells apart.

All topics are verified at once: each deed has to be found beside the others, and nothing else may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from outbox_etl.reconcile.request import ReconcileResult
from tests.support.plain_inserts import connect
from tests.support.recorded_by_hand import MakeWorld, Scene, Told, essence, told
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS


@dataclass
class Expected:
    """What is to be said of a topic."""

    found: list[Told] = field(default_factory=list)
    doubled: list[Told] = field(default_factory=list)
    """A problem for whoever was promised exactly once."""
    unknown: list[Told] = field(default_factory=list)
    """A problem unless the topic is shared with another outbox."""
    row: dict[str, int] = field(default_factory=dict)
    """Counts of the topic's line."""


def nothing(scene: Scene) -> Expected:
    scene.publish(scene.write(3))
    return Expected(row={"postgres": 3, "kafka": 3, "warehouse": 3})


def one_lost(scene: Scene) -> Expected:
    sent = scene.write(5)
    offset = scene.produce(*sent[:2])
    scene.produce(sent[2], foreign=True)
    scene.produce(*sent[3:])
    scene.record(sent, offset)
    lost: Told = ("missing", sent[2].message_id, offset + 2)
    return Expected([lost], row={"postgres": 5, "kafka": 4, "warehouse": 5, "foreign": 1})


def the_last_one_lost(scene: Scene) -> Expected:
    sent = scene.write(3)
    offset = scene.produce(*sent[:2])
    scene.record(sent, offset)
    return Expected([("missing", sent[2].message_id, offset + 2)])


def one_lost_and_the_one_before_doubled(scene: Scene) -> Expected:
    """As many records as messages, and each place has one."""
    sent = scene.write(3)
    offset = scene.produce(sent[0], sent[0], sent[2])
    scene.record(sent, offset)
    return Expected(
        [("missing", sent[1].message_id, offset + 1)], doubled=[("doubled", sent[0].message_id, offset + 1)]
    )


def two_bodies_swapped(scene: Scene) -> Expected:
    sent = scene.write(2)
    offset = scene.produce(
        *(replace(each, body=other.body) for each, other in zip(sent, sent[::-1], strict=True))
    )
    scene.record(sent, offset)
    return Expected([("altered", each.message_id, offset + n) for n, each in enumerate(sent)])


def two_swapped(scene: Scene) -> Expected:
    sent = scene.write(4)
    offset = scene.produce(sent[0], sent[2], sent[1], sent[3])
    scene.record(sent, offset)
    return Expected(
        [
            ("misplaced", sent[1].message_id, offset + 1),
            ("misplaced", sent[2].message_id, offset + 2),
            ("out_of_order", sent[1].message_id, offset + 2),
        ]
    )


def one_seen_and_published_too_late(scene: Scene) -> Expected:
    sent = scene.write(3)
    scene.publish([sent[0], sent[2]])
    offset = scene.publish([sent[1]])
    return Expected([("out_of_order", sent[1].message_id, offset)])


def one_overtaken_by_a_transaction_that_ran_beside(scene: Scene) -> Expected:
    with connect(scene.world.dsn) as slow, slow.transaction():
        late = scene.write(1, conn=slow)
        early = scene.write(1, start=1)
        scene.publish(early)
    scene.publish(late)
    assert late[0].position < early[0].position
    return Expected()


def two_of_a_transaction_swapped_behind_one_that_ran_beside(scene: Scene) -> Expected:
    """The later one of another transaction overtook both, rightly so; it must not hide what became of the two."""
    with connect(scene.world.dsn) as slow, slow.transaction():
        both = scene.write(2, conn=slow)
        scene.publish(scene.write(1, start=2))
    offset = scene.publish([both[1], both[0]])
    return Expected([("out_of_order", both[0].message_id, offset + 1)])


def another_body(scene: Scene) -> Expected:
    sent = scene.write(3)
    offset = scene.produce(sent[0], replace(sent[1], body="something else"), sent[2])
    scene.record(sent, offset)
    return Expected([("altered", sent[1].message_id, offset + 1)])


def one_that_was_never_committed(scene: Scene) -> Expected:
    sent = scene.write(1)
    scene.publish(sent)
    half = scene.world.conn.execute(
        "INSERT INTO outbox.message (topic, key, body, state, producer_group) "
        "VALUES (%s, 'h', 'h', 'UNKNOWN', 'g') RETURNING message_id::text",
        [scene.topic],
    ).fetchone()
    assert half is not None
    return Expected([("not_committed", half[0], scene.produce(replace(sent[0], message_id=half[0])))])


def one_that_nobody_knows_and_one_that_postgresql_lost(scene: Scene) -> Expected:
    sent = scene.write(2)
    offset = scene.publish(sent)
    scene.world.conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [sent[1].message_id])
    stranger = replace(sent[0], message_id="11111111-2222-4333-8444-555555555555")
    ours: Told = ("unknown", sent[1].message_id, offset + 1)
    return Expected(unknown=[("unknown", stranger.message_id, scene.produce(stranger)), ours])


def a_relay_died_before_it_recorded(scene: Scene) -> Expected:
    sent = scene.write(3)
    scene.produce(*sent)
    second = scene.publish(sent)
    return Expected(doubled=[("doubled", each.message_id, second + n) for n, each in enumerate(sent)])


def a_publication_recorded_twice(scene: Scene) -> Expected:
    sent = scene.write(3)
    scene.publish(sent)
    second = scene.publish(sent[1:])
    return Expected(doubled=[("doubled", each.message_id, second + n) for n, each in enumerate(sent[1:])])


def a_place_recorded_twice(scene: Scene) -> Expected:
    """There is one record, and nothing is wrong."""
    sent = scene.write(3)
    scene.record(sent[1:], scene.publish(sent) + 1)
    return Expected(row={"postgres": 3, "kafka": 3, "warehouse": 3})


def published_and_not_recorded_yet(scene: Scene) -> Expected:
    sent = scene.write(3)
    scene.publish(sent[:2])
    scene.produce(sent[2])
    return Expected(row={"postgres": 2, "kafka": 2, "warehouse": 2, "others": 1})


def a_record_that_no_publication_mentions(scene: Scene) -> Expected:
    sent = scene.write(3)
    scene.publish(sent)
    return Expected(doubled=[("doubled", sent[1].message_id, scene.produce(sent[1]))])


def what_retention_took(scene: Scene) -> Expected:
    offset = scene.publish(scene.write(5))
    _delete_below(scene, offset + 2)
    return Expected(row={"kafka": 3, "no_longer_in_kafka": 2})


def what_retention_took_of_doubled_ones(scene: Scene) -> Expected:
    """What is left is B A B: whether the first A came before the first B cannot be told."""
    sent = scene.write(2)
    offset = scene.produce(*sent)
    scene.publish(sent)
    _delete_below(scene, offset + 1)
    return Expected(doubled=[("doubled", sent[1].message_id, offset + 3)])


def what_compaction_took(scene: Scene) -> Expected:
    return replace(one_lost(scene), found=[], row={"no_longer_in_kafka": 1})


def transactions_of_another_producer(scene: Scene) -> Expected:
    """Each of them leaves a marker, and with it an offset without a record."""
    sent = scene.write(4)
    for number, message in enumerate(sent):
        scene.publish([message])
        with scene.transaction(message, commit=number % 2 == 0, foreign=number % 2 == 0):
            pass
    return Expected(row={"postgres": 4, "kafka": 4, "warehouse": 4, "foreign": 2})


def _delete_below(scene: Scene, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": scene.world.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(scene.topic, 0, offset)]).values():
        done.result(30)


DEEDS: dict[Callable[[Scene], Expected], dict[str, str]] = {
    nothing: {},
    one_lost: {},
    one_lost_and_the_one_before_doubled: {},
    two_bodies_swapped: {},
    the_last_one_lost: {},
    two_swapped: {},
    one_seen_and_published_too_late: {},
    one_overtaken_by_a_transaction_that_ran_beside: {},
    two_of_a_transaction_swapped_behind_one_that_ran_beside: {},
    another_body: {},
    one_that_was_never_committed: {},
    one_that_nobody_knows_and_one_that_postgresql_lost: {},
    a_relay_died_before_it_recorded: {},
    a_publication_recorded_twice: {},
    a_place_recorded_twice: {},
    published_and_not_recorded_yet: {},
    a_record_that_no_publication_mentions: {},
    what_retention_took: {},
    what_retention_took_of_doubled_ones: {},
    what_compaction_took: {"cleanup_policy": "compact"},
    transactions_of_another_producer: {},
}


@dataclass
class Judged:
    """What was expected of each topic, and the outcomes: of at-least-once, and of exactly once in shared topics."""

    expected: dict[str, tuple[Scene, Expected]]
    outcome: ReconcileResult
    strict: ReconcileResult
    certificates: list[Any]
    by_spark: ReconcileResult
    left_to_spark: list[str]


@pytest.fixture(scope="module")
def judged(module_worlds: MakeWorld, make_topic: MakeTopic) -> Judged:
    """All deeds done, exported and verified."""
    world = module_worlds()
    expected = {}
    for deed, settings in DEEDS.items():
        scene = Scene(world, make_topic(partitions=1, **settings))
        expected[deed.__name__] = scene, deed(scene)
    world.export()
    outcome = world.reconcile()
    strict = world.reconcile(everything=True, exactly_once=True, shared_topics=True)
    certificates = world.certificates()
    by_spark = world.reconcile_by_spark(everything=True)
    return Judged(expected, outcome, strict, certificates, by_spark, world.left_to_spark())


@pytest.mark.parametrize("deed", [deed.__name__ for deed in DEEDS])
def test_what_was_done_to_a_message_in_kafka_is_named_with_its_id_and_place(
    judged: Judged, deed: str
) -> None:
    scene, expected = judged.expected[deed]
    assert told(judged.outcome.found, scene.topic) == sorted([*expected.found, *expected.unknown])
    assert told(judged.outcome.allowed, scene.topic) == sorted(expected.doubled)
    row = next(row for row in judged.outcome.partitions if row["topic"] == scene.topic)
    assert {name: row[name] for name in expected.row} == expected.row
    sums = {row[f"{side}_checksum"] for side in ("postgres", "kafka", "warehouse")}
    whole = not any(kind in {"missing", "altered", "misplaced"} for kind, *_ in expected.found)
    assert (len(sums) == 1) == whole


@pytest.mark.parametrize("deed", [deed.__name__ for deed in DEEDS])
def test_exactly_once_reports_duplicates_and_a_shared_topic_allows_unknown_records(
    judged: Judged, deed: str
) -> None:
    scene, expected = judged.expected[deed]
    assert told(judged.strict.found, scene.topic) == sorted([*expected.found, *expected.doubled])
    assert told(judged.strict.allowed, scene.topic) == []


def test_all_that_was_found_is_counted_and_the_exit_code_says_so(judged: Judged) -> None:
    everything = [expected for _, expected in judged.expected.values()]
    found = sum(len(each.found) for each in everything)
    unknown = sum(len(each.unknown) for each in everything)
    doubled = sum(len(each.doubled) for each in everything)
    assert (judged.outcome.problems, judged.outcome.exit_code) == (found + unknown, 1)
    assert judged.outcome.notes["doubled"] == doubled
    assert (judged.outcome.notes["overtaken"], judged.outcome.notes["order_unknown"]) == (2, 1)
    assert (judged.strict.problems, judged.strict.exit_code) == (found + doubled, 1)
    assert judged.strict.notes["of_other_outboxes"] == unknown
    assert [problems for _, _, _, problems, *_ in judged.certificates] == [found + unknown, found + doubled]


def test_duckdb_and_spark_find_the_same(judged: Judged) -> None:
    assert judged.left_to_spark == []
    assert judged.outcome.sums != judged.by_spark.sums, "each engine has hashes of its own"
    assert essence(judged.outcome) == essence(judged.by_spark)


SOUND = (nothing, what_retention_took, transactions_of_another_producer, published_and_not_recorded_yet)


@pytest.mark.parametrize("more", [(), (a_place_recorded_twice,)])
def test_where_nothing_is_wrong_the_counts_and_sums_are_those_of_every_place(
    module_worlds: MakeWorld, make_topic: MakeTopic, more: tuple[Callable[[Scene], Expected], ...]
) -> None:
    world = module_worlds()
    scenes = [(Scene(world, make_topic(partitions=1)), deed) for deed in (*SOUND, *more)]
    expected = {scene.topic: deed(scene) for scene, deed in scenes}
    world.export()
    outcome = world.reconcile()
    assert (outcome.found, outcome.certified) == ((), True)
    for row in outcome.partitions:
        names = expected[row["topic"]].row
        assert {name: row[name] for name in names} == names
        assert len({row[f"{side}_checksum"] for side in ("postgres", "kafka", "warehouse")}) == 1
