"""`outbox topic create` of a topic that is registered and missing in Kafka, and what it releases."""

from __future__ import annotations

import uuid
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from outbox_relay.publisher import opening
from outbox_relay.publisher.core.values import Limits
from tests.support.held_keys import hold_key, write_key
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import Connection, insert, keys_of_lanes
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until


@pytest.fixture
def missing(conn: Connection) -> str:
    """A topic that is registered by plain SQL with 3 partitions, and that Kafka does not have."""
    name = f"missing-{uuid.uuid4().hex[:12]}"
    conn.execute(
        "INSERT INTO outbox.topic (name, message_type, partitions, max_message_bytes) VALUES (%s, 'FIFO', 3, 2000000)",
        [name],
    )
    return name


def create(database: str, bootstrap_servers: str, *arguments: str) -> Ran:
    return outbox(
        "topic", "create", *arguments, OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers
    )


def _lacks(admin: AdminClient, name: str) -> bool:
    return name not in admin.list_topics(timeout=10).topics


def test_a_registered_topic_that_kafka_lacks_is_created_as_registered(
    database: str, conn: Connection, bootstrap_servers: str, missing: str
) -> None:
    for _ in ("registered by SQL", "deleted in Kafka"):
        ran = create(database, bootstrap_servers, missing)
        assert (ran.code, ran.err) == (0, "")
        assert f"created topic {missing} with 3 partitions, as it is registered" in ran.out
        shown = succeed(
            "topic",
            "show",
            missing,
            "--json",
            OUTBOX_DSN=database,
            OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers,
        ).json
        assert (shown["partitions"], shown["message_type"], shown["kafka"]["partitions"]) == (3, "FIFO", 3)
        assert shown["kafka"]["max_message_bytes"] == 2_000_000
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.delete_topics([missing])[missing].result(15)
        wait_until(partial(_lacks, admin, missing), "the topic is deleted")


@pytest.mark.parametrize(
    "contradiction",
    [("--partitions", "12", "3"), ("--type", "NORMAL", "FIFO"), ("--selector", "modulo", "murmur2")],
)
def test_other_properties_than_are_registered_are_refused_and_explained(
    database: str, bootstrap_servers: str, missing: str, contradiction: tuple[str, str, str]
) -> None:
    option, wanted, registered = contradiction
    ran = create(database, bootstrap_servers, missing, option, wanted)
    assert ran.code == 1
    assert f"{option} {wanted}: topic '{missing}' is registered with {registered}" in ran.err
    assert f"outbox topic create {missing}" in ran.err


def test_a_registered_topic_that_kafka_has_is_refused(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    succeed("topic", "register", topic, OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)
    ran = create(database, bootstrap_servers, topic)
    assert ran.code == 1
    assert f"registered already, and Kafka has it; see: outbox topic show {topic}" in ran.err


@pytest.mark.parametrize("action", ["register", "alter"])
def test_register_and_alter_let_the_relay_try_what_is_held_of_the_topic(
    database: str, conn: Connection, bootstrap_servers: str, topic: str, action: str
) -> None:
    for name in (topic, "elsewhere"):
        hold_key(conn, write_key(conn, name, "k"))
    given = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    if action == "alter":
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [topic])
        ran = succeed("topic", "alter", topic, "--type", "FIFO", **given)
    else:
        ran = succeed("topic", "register", topic, **given)
    assert ran.err == f"the relay tries 1 hold of {topic} again now\n"
    rows = conn.execute("SELECT topic FROM outbox.parked_key WHERE requested_at IS NOT NULL").fetchall()
    assert rows == [(topic,)]


def test_a_topic_goes_on_soon_after_the_repair_that_its_error_names(
    database: str, conn: Connection, bootstrap_servers: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its back-off is much longer than the test waits."""
    monkeypatch.setattr(opening, "Limits", partial(Limits, pause=3_600.0, longest_pause=3_600.0))
    (key,) = keys_of_lanes(conn, missing, 1)
    insert(conn, missing, key, b"x")
    parked = "SELECT error FROM outbox.parked_key WHERE is_topic"
    with relay_session(database, bootstrap_servers) as session:
        turn_until(session, lambda: bool(conn.execute(parked).fetchall()), "the topic is parked")
        error = str(value(conn, parked))
        command = error.rpartition("create it with: outbox ")[2].split()
        assert command == ["topic", "create", missing]
        succeed(*command, OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)
        turn_until(session, lambda: not conn.execute(parked).fetchall(), "the topic goes on")
