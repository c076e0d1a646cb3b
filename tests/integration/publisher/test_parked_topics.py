"""A topic that is paused, or that Kafka does not take, parks itself and nothing else, and goes on in order."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from outbox_relay.alarms.delivery import STATEMENTS as ALARMS
from outbox_relay.publisher.errors import TOPICS_FAULT
from outbox_relay.publisher.hands import wires, writes
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, connect_as_service, insert, insert_numbered
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.topic_parking import LANES, TopicParking
from tests.support.topics import Topics
from tests.support.waiting import wait_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

GENERATION = "SELECT generation FROM outbox.topic_generation"
STATED = "SELECT topics_seen - pg_catalog.cardinality(topics_behind) FROM outbox.lease"
LEASED = "SELECT leased_until FROM outbox.lease"


def policy(bootstrap_servers: str, topic: str, cleanup: str) -> None:
    """Set a topic's cleanup.policy in Kafka."""
    entry = ConfigEntry("cleanup.policy", cleanup, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(15)


@pytest.mark.feature("H-19")
@pytest.mark.feature("S-38")
def test_a_paused_topic_parks_itself_only_and_goes_on_in_order(database: str, bootstrap_servers: str) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send(2)
        topics.settle(session)
        topics.pause()
        topics.follow(session)
        topics.send(3)
        topics.settle(session)
        assert topics.parked == [(lane, topics.sick, "TOPIC_PAUSED") for lane in LANES]
        assert topics.reasons == ["parked"] * 6
        topics.check(topics.sick, range(2))
        topics.check(topics.well, range(5))
        topics.resume()
        topics.send(2)
        topics.drain(session)
        topics.send()
        topics.settle(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(8))
    topics.check(topics.well, range(8))


@pytest.mark.feature("S-38")
def test_a_missing_topic_parks_itself_only_and_goes_on_when_it_is_made(
    database: str, bootstrap_servers: str
) -> None:
    with connect_as_service(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers, missing=True)
        topics.send(3)
        topics.settle(session)
        assert topics.parked == [(lane, topics.sick, "UNKNOWN_TOPIC_OR_PART") for lane in LANES]
        topics.check(topics.well, range(3))
        # Tried again by request before it is there.
        conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp()")
        tried = "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NULL"
        turn_until(session, lambda: conn.execute(tried).fetchone() == (2,), "it is tried")
        assert topics.reasons == ["parked"] * 6, "nothing of it is dead"
        alarms = [row for row in conn.execute(ALARMS["found"]).fetchall() if row[0] == "hold"]
        assert [(kind, cause) for kind, cause, _ in alarms] == [("hold", f"topic {topics.sick}")]
        assert alarms[0][2].startswith("holds: 1, since 20")
        assert "Z: UNKNOWN_TOPIC_OR_PART" in alarms[0][2]
        Topics(bootstrap_servers).make_named(topics.sick, 1)
        topics.send(2)
        topics.drain(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(5))
    topics.check(topics.well, range(5))


def test_a_topic_that_is_deleted_parks_itself_only(database: str, bootstrap_servers: str) -> None:
    """The relay believes that Kafka has it: it learns of that by a refusal, or when it reads the topic again."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send(2)
        topics.settle(session)
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.delete_topics([topics.sick])[topics.sick].result(15)
        topics.send(2)
        topics.settle(session)
        assert [lane for lane, *_ in topics.parked] == list(LANES)
        Topics(bootstrap_servers).make_named(topics.sick, 1)
        topics.send()
        topics.drain(session)
    topics.check(topics.sick, range(2, 5))
    topics.check(topics.well, range(5), repeated=True)


def test_a_paused_topic_outlives_its_relay_and_its_successors_know_it(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=False) as session:
            topics = TopicParking(conn, bootstrap_servers)
            topics.send()
            topics.settle(session)
            topics.pause()
            topics.follow(session)
            topics.send()
            turn_until(session, lambda: len(topics.reasons) == 2, "it waits")
        topics.send()
        with relay_session(database, bootstrap_servers, clean=False) as session:
            topics.settle(session)
            assert topics.reasons == ["parked"] * 4
            topics.resume()
            announced = "SELECT count(*) FROM outbox.parked_key WHERE draining_at IS NOT NULL"
            turn_until(session, lambda: conn.execute(announced).fetchone() == (2,), "its drain begins")
        topics.send()
        with relay_session(database, bootstrap_servers) as session:
            topics.drain(session)
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4), repeated=True)


def test_a_pause_is_stated_once_nothing_of_the_topic_is_on_the_wire(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn, RelayThread(database, bootstrap_servers, lease=1.0) as running:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send()
        wait_until(topics.is_settled, "it is published")
        seen = value(conn, GENERATION)
        wait_until(lambda: value(conn, STATED) == seen, "it states what it publishes by")
        with withheld_acknowledgements():
            topics.send()
            wait_until(lambda: len(read_topic(bootstrap_servers, topics.sick)) == 4, "it is in Kafka")
            topics.pause()
            running.wait_for("topic is held", topic=topics.sick)
            for _ in range(2):
                until = value(conn, LEASED)
                wait_until(lambda until=until: value(conn, LEASED) != until, "the lease is renewed")  # type: ignore[misc]
            assert value(conn, STATED) == seen
        wait_until(lambda: value(conn, STATED) == seen + 1, "it states the pause")
        wait_until(topics.is_settled, "what was on the wire is published")
        assert topics.reasons == []
    topics.check(topics.sick, range(2))
    topics.check(topics.well, range(2))


@pytest.mark.parametrize("parked_first", [True, False])
def test_a_message_that_fails_as_its_topic_goes_on_parks_its_own_key(
    database: str, bootstrap_servers: str, *, parked_first: bool
) -> None:
    """Also one whose key was parked before: what waits for its topic joins it, behind what waits for its key."""
    with connect(database) as conn, ExitStack() as stack:
        topics = TopicParking(conn, bootstrap_servers)
        bad, _ = topics.keys[topics.sick]
        conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000 WHERE name = %s", [topics.sick])
        long = '{"much": "%s"}' % ("x" * 2_000)
        session = stack.enter_context(relay_session(database, bootstrap_servers))
        topics.send()
        topics.settle(session)

        def send_long() -> None:
            for key, lane in zip(topics.keys[topics.sick], LANES, strict=True):
                columns = {"headers": long} if key == bad else {}
                insert(conn, topics.sick, key, f"{key}:{topics.sent}", lane=lane, **columns)
            topics.sent += 1

        if parked_first:
            send_long()
            topics.settle(session)
            assert topics.of_keys == 1
        topics.pause()
        topics.follow(session)
        third = topics.another_key(LANES[0])
        insert(conn, topics.sick, third, f"{third}:0")
        topics.settle(session)
        if not parked_first:
            send_long()
        topics.send(2, [topics.sick])
        topics.settle(session)
        assert topics.reasons.count("parked") == (5 if parked_first else 7)
        # A drain of the key waits for the topic: it is not tried, and its error stays.
        conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE NOT is_topic")
        for _ in range(5):
            session.run_once(0.005)
        tries = conn.execute("SELECT tries FROM outbox.parked_key WHERE NOT is_topic").fetchall()
        assert tries == ([(0,)] if parked_first else [])
        topics.resume()
        topics.drain(session)
        topics.send(1, [topics.sick])
        turn_until(session, lambda: topics.reasons == ["failed", "held", "held", "held"], "its key is parked")
        conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000000 WHERE name = %s", [topics.sick])
        conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp()")
        turn_until(session, lambda: not topics.of_keys, "the key is drained")
        topics.settle(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(5), also=[(third, 0)])


def test_a_backlog_of_a_paused_topic_holds_up_no_other_and_is_drained_in_order(
    database: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read apart, and claimed page by page; so is what comes while it is drained."""
    monkeypatch.setattr(writes, "HOLD_PAGE", 30)
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        with relay_session(database, bootstrap_servers, page=20, clean=False) as session:
            topics.send(1, [topics.well])
            topics.settle(session)
            topics.pause()
            topics.follow(session)
            with conn.transaction():
                insert_numbered(conn, topics.sick, 400, keys=7)
                topics.send(2, [topics.well])
            turn_until(session, lambda: topics.is_published(topics.well, 6), "the other one flows")
            assert len(topics.reasons) < 400
            turn_until(session, lambda: len(topics.reasons) == 400, "all of it waits")
            topics.settle(session)
        # Of what waits no progress is recorded: the next relay lists it once more, and drains it after that.
        topics.resume()
        with relay_session(database, bootstrap_servers, page=20) as session:
            turn_until(session, lambda: session.counts.published > 100, "it is being drained")
            insert_numbered(conn, topics.sick, 100, keys=7, start=400)
            topics.drain(session)
            assert topics.reasons == []
    topics.check(topics.well, range(3))
    versions: dict[bytes, list[int]] = {}
    for record in read_topic(bootstrap_servers, topics.sick):
        assert record.key is not None
        assert record.value is not None
        versions.setdefault(record.key, []).append(int(record.value.rpartition(b":")[2]))
    assert sum(map(len, versions.values())) == 500
    assert all(found == sorted(set(found)) for found in versions.values())


def test_the_messages_of_a_topic_that_is_gone_for_good_can_be_given_up(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers, missing=True)
        topics.send(2, [topics.sick])
        topics.settle(session)
        assert len(topics.parked) == 2
        change = "UPDATE outbox.message SET state = 'DEAD', remark = 'gone' WHERE id = %s"
        for (id_,) in conn.execute("SELECT id FROM outbox.message ORDER BY id").fetchall():
            with psycopg.connect(database, autocommit=True) as operator:
                operator.execute(change, [id_])
        turn_until(session, lambda: not topics.parked, "nothing is left of it")
        assert topics.reasons == []


@pytest.mark.usefixtures("may_not_describe_configs")
def test_a_topic_whose_messages_are_refused_at_each_try_repeats_nothing_of_others(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that may be described and not written to. Here the broker refuses messages without a key."""
    monkeypatch.setattr(wires, "TOPICS_FAULT", TOPICS_FAULT | {"INVALID_RECORD"})
    refusing = make_topic(partitions=1, cleanup_policy="compact")
    tries = "SELECT min(tries) FROM outbox.parked_key WHERE is_topic"
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send(1, [topics.well])
        topics.settle(session)
        for number in range(4):
            insert(conn, refusing, None, b"%d" % number, lane=LANES[number % 2])
        topics.settle(session)
        assert [(lane, code) for lane, _, code in topics.parked] == [
            (lane, "INVALID_RECORD") for lane in LANES
        ]
        repeated = len(read_topic(bootstrap_servers, topics.well))

        turn_until(session, lambda: bool(value(conn, tries)), "each lane has tried it again")
        topics.send(1, [topics.well])
        topics.settle(session)
        assert value(conn, "SELECT sum(tries) FROM outbox.parked_key") <= 4, "later each time"
        assert topics.reasons == ["parked"] * 4
        assert len(read_topic(bootstrap_servers, topics.well)) == repeated + 2 * (topics.sent - 1), (
            "nothing twice"
        )
        policy(bootstrap_servers, refusing, "delete")
        topics.drain(session)
        assert topics.reasons == []
    values = [record.value for record in read_topic(bootstrap_servers, refusing)]
    assert [one for one in values if one in {b"0", b"2"}] == [b"0", b"2"]
    assert [one for one in values if one in {b"1", b"3"}] == [b"1", b"3"]
    topics.check(topics.well, range(topics.sent), repeated=True)
