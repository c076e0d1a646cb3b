"""`outbox topic repartition`: what it refuses, what it waits for, and what it reports."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_relay.publisher.session import Session
from tests.support.moved_keys import grow
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import Connection, insert_numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

COUNT = "SELECT partitions FROM outbox.topic WHERE name = %s"


@pytest.fixture
def environment(database: str, bootstrap_servers: str) -> dict[str, str]:
    return {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}


@pytest.fixture
def grown(environment: dict[str, str], bootstrap_servers: str, make_topic: MakeTopic) -> str:
    """A topic that is pinned to 4 of its 6 partitions."""
    topic = make_topic(4)
    succeed("topic", "register", topic, **environment)
    grow(bootstrap_servers, topic, 6)
    return topic


def repartition(environment: dict[str, str], topic: str, to: int, *options: str) -> Ran:
    return outbox("topic", "repartition", topic, "--to", str(to), *options, **environment)


@pytest.mark.parametrize(
    ("change", "to", "words"),
    [
        ("", 3, ("--to 3", "pinned to 4 partitions", "up to the 6 that Kafka has", "topic alter")),
        ("", 7, ("--to 7", "has 6 partitions", "kafka-topics.sh --alter")),
        (
            "selector = 'ours'",
            6,
            ("custom selector 'ours'", "stop the producers", "--partitions 6 --move-keys"),
        ),
    ],
)
def test_what_would_not_keep_the_order_is_refused(
    environment: dict[str, str], conn: Connection, grown: str, *, change: str, to: int, words: tuple[str, ...]
) -> None:
    if change:
        conn.execute(f"UPDATE outbox.topic SET {change}")
    for options in ((), ("--dry-run",)):
        ran = repartition(environment, grown, to, *options)
        assert ran.code == 1
        for word in words:
            assert word in ran.err, ran.err
    assert conn.execute(COUNT, [grown]).fetchone() == (4,)


def test_fewer_partitions_are_refused_without_a_range_where_kafka_has_no_more(
    environment: dict[str, str], make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    succeed("topic", "register", topic, **environment)
    ran = repartition(environment, topic, 3)
    assert ran.code == 1
    assert "pinned to 4 partitions; expected more, which Kafka must have first" in ran.err


def test_an_unknown_topic_is_refused_with_the_nearest_name(environment: dict[str, str], grown: str) -> None:
    ran = repartition(environment, grown + "x", 6)
    assert ran.code == 1
    assert f"Did you mean '{grown}'?" in ran.err
    assert outbox("topic", "repartition", grown, "--to", "0", **environment).code == 2


def test_a_dry_run_shows_the_plan_and_changes_nothing(
    environment: dict[str, str], conn: Connection, database: str, bootstrap_servers: str, grown: str
) -> None:
    with RelayThread(database, bootstrap_servers) as relay:
        relay.wait_for("lanes taken")
        ran = repartition(environment, grown, 6, "--dry-run")
        assert ran.code == 0
        assert "nothing was changed" in ran.out
        found = repartition(environment, grown, 6, "--dry-run", "--json").json
        [going] = found.pop("relays")
        assert (going["lanes"], going["has_applied"]) == ([*range(8)], False)
    assert found == {
        "topic": grown,
        "before": 4,
        "partitions": 6,
        "kafka_partitions": 6,
        "changed": False,
        "dry_run": True,
        "groups": [],
    }
    assert conn.execute(COUNT, [grown]).fetchone() == (4,)


def test_without_a_relay_the_registry_alone_changes(
    environment: dict[str, str], conn: Connection, grown: str
) -> None:
    ran = repartition(environment, grown, 6)
    assert (ran.code, "no relay runs" in ran.out) == (0, True)
    assert conn.execute(COUNT, [grown]).fetchone() == (6,)
    assert repartition(environment, grown, 6, "--json").json["changed"] is False


def test_it_names_the_relay_that_has_not_gone_over_and_goes_on_when_repeated(
    environment: dict[str, str],
    conn: Connection,
    database: str,
    bootstrap_servers: str,
    grown: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follow = Session._follow_topics
    with RelayThread(database, bootstrap_servers, lease=1.5) as relay:
        relay.wait_for("lanes taken")
        insert_numbered(conn, grown, 100)
        wait_published(conn)
        monkeypatch.setattr(
            Session, "_follow_topics", lambda self: None
        )  # as one that Kafka does not reply to
        ran = repartition(environment, grown, 6, "--timeout", "0.3")
        assert ran.code == 1
        assert relay.session is not None
        owner = relay.session._lease.owner
        assert f"have not gone over: {owner} (lanes 0, 1, 2, 3, 4, 5, 6, 7)" in ran.err
        assert f"to wait on: outbox topic repartition {grown} --to 6" in ran.err
        monkeypatch.setattr(Session, "_follow_topics", follow)
        ran = repartition(environment, grown, 6)
        assert ran.code == 0
        assert f"the registry has 6 partitions for {grown} already" in ran.err
        assert f"{owner} has gone over" in ran.err
        assert "published to 6 partitions by the relay that runs" in ran.out
        relay.wait_for("topic moves its keys", topic=grown, before=4, partitions=6)
    assert relay.error is None


def test_a_topic_that_another_session_changes_meanwhile_is_left(
    environment: dict[str, str], conn: Connection, database: str, grown: str
) -> None:
    """It has read the topic when the other session, which holds its row, commits a change."""
    waiting = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE NOT granted AND datname = current_database()
    """
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(database) as other:
            other.execute("UPDATE outbox.topic SET partitions = 5")
            running = pool.submit(repartition, environment, grown, 6)
            wait_until(lambda: conn.execute(waiting).fetchone() == (1,), "the command waits for the row")
        ran = running.result(30)
    assert ran.code == 1
    assert "was changed by another session meanwhile" in ran.err
    assert conn.execute(COUNT, [grown]).fetchone() == (5,)
