"""Topics are looked up beside publishing: many in as many requests as one, and a look-up that hangs holds up no other.

Nothing is to be settled when a process dies during a look-up: all that it writes is the registration of new topics, in
one statement before anything of their page is produced, and the next relay reads them again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outbox_local.stack.api import Stack
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.hands import topic_watch
from outbox_relay.publisher.hands.topic_watch import Found, TopicWatch
from outbox_relay.publisher.kafka import new_admin, producer_settings
from outbox_relay.publisher.records import Topic
from outbox_relay.publisher.topics import TopicLookup
from tests.support.kafka_records import compare, read_topic
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, connect_as_service, insert, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.topics import Topics
from tests.support.waiting import wait_until

MANY = 300
HANGING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'outbox relay topics' AND wait_event_type = 'Lock'
"""
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE status = 'PUBLISHED'"


@pytest.fixture
def many_topics(bootstrap_servers: str) -> Iterator[list[str]]:
    """Three hundred topics of one partition, until the end of the test."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    names = [Topics.new_name() for _ in range(MANY)]
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(60)
    wait_until(
        lambda: set(names) <= set(admin.list_topics(timeout=15).topics), "the broker lists all of them"
    )
    yield names
    for deleted in admin.delete_topics(names).values():
        deleted.result(60)


class CountedAdmin:
    """An admin client, and what it has sent, by the statistics of librdkafka."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._at, self._sent = 0.0, Counter[str]()
        settings: dict[str, Any] = {"statistics.interval.ms": 20, "stats_cb": self._keep, "log_level": 0}
        self.client = AdminClient({"bootstrap.servers": bootstrap_servers, **settings})
        self.client.list_topics(timeout=15)

    def _keep(self, text: str) -> None:
        statistics = json.loads(text)
        self._at = statistics["ts"] / 1_000_000
        self._sent = Counter()
        for broker in statistics["brokers"].values():
            self._sent.update(broker["req"])

    def sent(self) -> Counter[str]:
        """Return the requests so far, by name: older statistics may be waiting, by librdkafka's monotonic clock."""
        now = time.monotonic()

        def seen() -> bool:
            self.client.poll(0.05)
            return self._at > now

        wait_until(seen, "librdkafka gives its statistics")
        return self._sent


def test_three_hundred_topics_are_looked_up_in_as_many_requests_as_one(
    conn: Connection, bootstrap_servers: str, many_topics: list[str]
) -> None:
    admin = CountedAdmin(bootstrap_servers)
    lookup = TopicLookup(lambda: admin.client)
    conn.execute("SET search_path = pg_catalog")  # as a relay's session
    for names in (many_topics[:1], many_topics):
        before = admin.sent()
        found = lookup.read(conn, names)
        assert all(isinstance(topic, Topic) for topic in found.values())
        assert set(found) == set(names)
        sent = admin.sent() - before
        connections = sent.pop("ApiVersion", 0)  # made meanwhile: each may ask for metadata of its own
        assert sent.pop("Metadata") in range(1, 2 + connections)
        assert sent == {"DescribeConfigs": 1}
    registered = conn.execute("SELECT count(*) FROM outbox.topic WHERE partitions = 1").fetchone()
    assert registered == (MANY,)


def test_a_page_of_three_hundred_new_topics_is_published(
    database: str, bootstrap_servers: str, conn: Connection, many_topics: list[str]
) -> None:
    with conn.transaction():
        for topic in many_topics:
            insert(conn, topic, "k", b"first")
    with RelayThread(database, bootstrap_servers) as relay:
        wait_published(conn)
        assert len(relay.find("topic registered")) == MANY
    assert relay.error is None
    assert conn.execute(PUBLISHED).fetchone() == (MANY,)


def test_known_topics_flow_while_postgresql_holds_up_a_look_up(
    database: str, bootstrap_servers: str, conn: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up waits for a lock that the test holds, so what is published meanwhile has not waited for it."""
    monkeypatch.setattr(topic_watch, "REFRESH_S", 0.05)
    with RelayThread(database, bootstrap_servers) as relay:
        insert(conn, topic, "k0", "k0:0")
        wait_published(conn)
        with holding(database, "LOCK outbox.topic IN ACCESS EXCLUSIVE MODE"):
            wait_until(lambda: conn.execute(HANGING).fetchone() == (1,), "the look-up waits for the lock")
            for number in range(1, 20):
                # With its lane, as the library inserts: nothing is checked, so nothing reads outbox.topic.
                insert(conn, topic, "k0", f"k0:{number}", lane=0)
                wait_published(conn)
            assert conn.execute(HANGING).fetchone() == (1,)
        conn.execute("UPDATE outbox.topic SET max_message_bytes = 100")
        wait_until(lambda: is_refused(conn, topic), "the look-ups go on")
    assert relay.error is None
    small = [record for record in read_topic(bootstrap_servers, topic) if record.key is not None]
    assert not compare(small, numbered(20, keys=1)).broken


def is_refused(conn: Connection, topic: str) -> bool:
    """Send a message of more than 100 bytes; return whether one was too large by now."""
    insert(conn, topic, None, b"x" * 200, lane=0)
    wait_published(conn)
    return conn.execute("SELECT EXISTS (SELECT FROM outbox.parked_key)").fetchone() == (True,)


@pytest.mark.xdist_group("private stack")
def test_known_topics_flow_while_a_broker_holds_up_a_look_up(
    private_database: str, private_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2 is paused, as a machine that swaps: it takes requests and answers none."""
    monkeypatch.setattr(topic_watch, "REFRESH_S", 0.05)
    started: list[Future[Found]] = []
    begin = TopicWatch.begin

    def note(watch: TopicWatch, names: Iterable[str]) -> Future[Found]:
        started.append(begin(watch, names))
        return started[-1]

    monkeypatch.setattr(TopicWatch, "begin", note)
    with SecondBroker(private_stack) as broker, connect_as_service(private_database) as conn:
        topic, servers = broker.make_topic(on=1), broker.bootstrap_servers
        with RelayThread(private_database, servers) as relay:
            insert(conn, topic, "k0", "k0:0")
            wait_published(conn)
            count = 1
            with broker.paused():

                def published_during_a_look_up() -> bool:
                    nonlocal count
                    look_up = started[-1]
                    if look_up.done():
                        return False
                    insert(conn, topic, "k0", f"k0:{count}", lane=0)
                    count += 1
                    wait_published(conn)
                    return not look_up.done()

                wait_until(lambda: bool(started), "topics are read again")
                wait_until(published_during_a_look_up, "messages are published while a look-up hangs")
                relay.wait_for("topics not read again; what is known stays in use")
                insert(conn, topic, "k0", f"k0:{count}", lane=0)
                count += 1
                wait_published(conn)
        assert relay.error is None
        assert not compare(read_topic(servers, topic), numbered(count, keys=1)).broken


@pytest.mark.xdist_group("private stack")
def test_a_look_up_is_not_bound_to_one_broker_that_died(private_database: str, private_stack: Stack) -> None:
    """A client may ask the broker that it took for the controller for minutes after its death, and no other.

    Some clients notice the death by themselves, hence several.
    """
    with SecondBroker(private_stack) as broker, connect_as_service(private_database) as conn:
        topic, settings = broker.make_topic(on=1), producer_settings(broker.bootstrap_servers)
        lookups = [TopicLookup(first_then_new(client_of_broker(2, settings), settings)) for _ in range(5)]
        broker.kill()
        for lookup in lookups:
            wait_until(partial(finds, lookup, conn, topic), "the topic is found without broker 2")


def finds(lookup: TopicLookup, conn: Connection, topic: str) -> bool:
    """Whether a look-up finds the topic; where there is no answer, the relay asks again, too."""
    try:
        return isinstance(lookup.read(conn, [topic])[topic], Topic)
    except KafkaUnavailableError:
        return False


def first_then_new(admin: AdminClient, settings: dict[str, Any]) -> Callable[[], AdminClient]:
    """Open this client first, and new ones afterwards."""
    first = [admin]
    return lambda: first.pop() if first else new_admin(settings)


def client_of_broker(node: int, settings: dict[str, Any]) -> AdminClient:
    """Make an admin client that takes this broker for the controller: KRaft names any that is alive."""

    def asked() -> list[AdminClient]:
        admin = new_admin(settings)  # its own truth is the number of its messages: none
        return [admin] if admin.list_topics(timeout=15).controller_id == node else []

    return wait_until(asked, f"a client takes broker {node} for the controller")[0]
