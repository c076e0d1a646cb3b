"""`outbox topic` against a real broker: made, registered, shown, changed; keys move only when that is asked for."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from outbox.operations.topics import DEFAULT_MAX_MESSAGE_BYTES
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import connect
from tests.support.servers import MakeTopic


@pytest.fixture
def environment(database: str, bootstrap_servers: str) -> dict[str, str]:
    return {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}


@pytest.fixture
def name() -> str:
    """A topic that does not exist."""
    return f"test-{uuid.uuid4().hex[:16]}"


def registered(database: str) -> list[tuple[object, ...]]:
    with connect(database) as conn:
        return conn.execute(
            "SELECT name, message_type, partitions, selector, max_message_bytes FROM outbox.topic ORDER BY name"
        ).fetchall()


def test_create_makes_the_topic_and_registers_what_kafka_says(
    database: str, environment: dict[str, str], name: str
) -> None:
    ran = succeed(
        *("topic", "create", name, "--partitions", "3", "--type", "fifo", "--replication-factor", "1"),
        *(
            "--config",
            "max.message.bytes=5000",
            "--config",
            "retention.ms=60000",
            "--selector",
            "modulo",
            "--json",
        ),
        **environment,
    )
    assert ran.json["kafka"] == {
        "name": name,
        "partitions": 3,
        "replication_factor": 1,
        "max_message_bytes": 5000,
    }
    assert registered(database) == [(name, "FIFO", 3, "modulo", 5000)]


def test_create_without_a_database_schema_makes_nothing_in_kafka(
    make_database: object, bootstrap_servers: str, name: str
) -> None:
    assert callable(make_database)
    ran = outbox(
        *("topic", "create", name),
        OUTBOX_DSN=make_database(migrated=False),
        OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers,
    )
    assert ran.code == 1
    assert name not in AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=10).topics


def test_create_of_an_existing_topic_says_how_to_register_it(environment: dict[str, str], topic: str) -> None:
    ran = outbox("topic", "create", topic, **environment)
    assert ran.code == 1
    assert f"register it: outbox topic register {topic}" in ran.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--config", "no.such.setting=1"], "no.such.setting"),
        (["--replication-factor", "9"], "replication"),
        (["--config", "retention.ms"], "NAME=VALUE"),
        (["--partitions", "0"], "--partitions"),
        (["--type", "QUEUE"], "--type"),
        (["--selector", " "], "names no selector"),
        (["--type", "fifo", "--skip-ahead"], "--skip-ahead: not with --type FIFO"),
        (["--kafka-config", "acks=1"], "would break a promise"),
        (["--kafka-config", "security.protocol=none"], "security.protocol"),
        (["--kafka-config", "s3cr3t"], "NAME=VALUE"),
    ],
)
def test_create_is_refused_with_the_reason_and_registers_nothing(
    database: str, environment: dict[str, str], name: str, options: list[str], reason: str
) -> None:
    ran = outbox("topic", "create", name, *options, **environment)
    assert ran.code != 0
    assert reason in ran.err
    assert "s3cr3t" not in ran.err
    assert registered(database) == []


@pytest.mark.parametrize("bad", ["a/b", "", "..", "x" * 250, "naïve"])
def test_an_illegal_name_is_refused_with_what_is_allowed(bad: str) -> None:
    ran = outbox("topic", "create", bad, OUTBOX_DSN="postgresql://h/x", OUTBOX_BOOTSTRAP_SERVERS="h:1")
    assert ran.code == 2
    assert "legal Kafka topic name" in ran.err


def test_register_pins_the_present_partition_count_and_the_real_size_limit(
    database: str, environment: dict[str, str], make_topic: MakeTopic
) -> None:
    small = make_topic(partitions=2, max_message_bytes="1234")
    plain = make_topic(partitions=5)
    succeed("topic", "register", small, **environment)
    succeed("topic", "register", plain, "--type", "TRANSACTION", **environment)
    assert sorted(registered(database)) == sorted(
        [(small, "MIXED", 2, None, 1234), (plain, "TRANSACTION", 5, None, DEFAULT_MAX_MESSAGE_BYTES)]
    )


def test_registering_again_is_fine_when_it_says_the_same_and_refused_when_not(
    environment: dict[str, str], topic: str
) -> None:
    succeed("topic", "register", topic, **environment)
    assert "is registered already" in succeed("topic", "register", topic, **environment).out
    ran = outbox("topic", "register", topic, "--type", "FIFO", **environment)
    assert ran.code == 1
    assert "type MIXED, not FIFO" in ran.err
    assert f"outbox topic alter {topic}" in ran.err


@pytest.mark.parametrize("command", ["register", "show", "alter"])
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    environment: dict[str, str], topic: str, command: str
) -> None:
    succeed("topic", "register", topic, **environment)
    options = ["--type", "FIFO"] if command == "alter" else []
    ran = outbox("topic", command, f"{topic}x", *options, **environment)
    assert ran.code == 1
    assert f"Did you mean '{topic}'" in ran.err


def grow(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Add partitions in Kafka, behind the outbox's back."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(10)


def alter(environment: dict[str, str], topic: str, *options: str) -> Ran:
    return outbox("topic", "alter", topic, *options, **environment)


@pytest.mark.parametrize(
    ("change", "told"),
    [(["--partitions", "3"], "pinned to 4 partitions"), (["--selector", "modulo"], "selector murmur2")],
)
def test_what_would_move_keys_is_refused_with_a_reason_unless_requested_by_name(
    database: str, environment: dict[str, str], topic: str, change: list[str], told: str
) -> None:
    succeed("topic", "register", topic, **environment)
    before = registered(database)
    ran = alter(environment, topic, *change)
    assert ran.code == 1
    for words in (told, "other partitions", "--move-keys"):
        assert words in ran.err
    assert registered(database) == before
    assert alter(environment, topic, *change, "--move-keys").code == 0
    assert registered(database) != before


def test_partitions_added_in_kafka_move_no_key(
    database: str, environment: dict[str, str], bootstrap_servers: str, topic: str
) -> None:
    succeed("topic", "register", topic, **environment)
    grow(bootstrap_servers, topic, 6)
    assert registered(database)[0][2] == 4
    assert "keys stay on the first 4" in succeed("topic", "show", topic, **environment).out
    assert alter(environment, topic, "--partitions", "6", "--move-keys").code == 0
    assert registered(database)[0][2] == 6


def test_a_pinned_count_beyond_kafkas_is_refused(environment: dict[str, str], topic: str) -> None:
    succeed("topic", "register", topic, **environment)
    ran = alter(environment, topic, "--partitions", "9", "--move-keys")
    assert ran.code == 1
    assert "add partitions there first" in ran.err


def test_a_topic_that_skips_ahead_is_made_listed_and_changed_back(
    environment: dict[str, str], name: str, topic: str
) -> None:
    succeed("topic", "create", name, "--replication-factor", "1", "--skip-ahead", **environment)
    succeed("topic", "register", topic, **environment)
    listed = succeed("topic", "ls", "--json", **environment).json
    assert {one["name"]: one["skip_ahead"] for one in listed} == {name: True, topic: False}
    assert "SKIPS AHEAD" in succeed("topic", "ls", **environment).out
    assert "holds no others" in succeed("topic", "show", name, **environment).out
    ran = outbox("topic", "register", name, **environment)
    assert ran.code == 1
    assert "skip_ahead True, not False" in ran.err
    ran = alter(environment, name, "--type", "FIFO")
    assert ran.code == 1
    assert f"outbox topic alter {name} --no-skip-ahead" in ran.err
    assert alter(environment, name, "--type", "FIFO", "--no-skip-ahead").code == 0
    ran = alter(environment, name, "--skip-ahead")
    assert ran.code == 1
    assert "would be of type FIFO" in ran.err
    assert "holds its order key" in succeed("topic", "show", name, **environment).out


def test_type_and_size_limit_can_be_changed(database: str, environment: dict[str, str], topic: str) -> None:
    succeed("topic", "register", topic, **environment)
    assert alter(environment, topic, "--type", "delay", "--max-message-bytes", "500").code == 0
    assert registered(database) == [(topic, "DELAY", 4, None, 500)]
    assert alter(environment, topic, "--max-message-bytes", "600").code == 0
    assert registered(database) == [(topic, "DELAY", 4, None, 600)]


def test_a_size_limit_beyond_kafkas_is_refused(environment: dict[str, str], make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes="1000")
    succeed("topic", "register", topic, **environment)
    ran = alter(environment, topic, "--max-message-bytes", "1001")
    assert ran.code == 1
    assert "takes 1000 at most" in ran.err


def test_alter_without_a_change_says_what_can_be_changed(environment: dict[str, str], topic: str) -> None:
    ran = alter(environment, topic)
    assert ran.code == 2
    assert "--max-message-bytes" in ran.err


def test_ls_and_show_tell_the_registry_even_without_a_broker(
    database: str, environment: dict[str, str], topic: str
) -> None:
    assert "no topic is registered" in succeed("topic", "ls", OUTBOX_DSN=database).out
    succeed("topic", "register", topic, "--type", "FIFO", **environment)
    shown = succeed("topic", "ls", OUTBOX_DSN=database).out.splitlines()
    assert shown[0].split() == [
        "TOPIC",
        "TYPE",
        "PARTITIONS",
        "SELECTOR",
        "MAX",
        "BYTES",
        "SKIPS",
        "AHEAD",
        "REGISTERED",
        "PAUSED",
    ]
    assert shown[1].split()[:4] == [topic, "FIFO", "4", "murmur2"]
    (listed,) = succeed("topic", "ls", "--json", OUTBOX_DSN=database).json
    assert (listed["name"], listed["partitions"]) == (topic, 4)
    assert succeed("topic", "show", topic, "--json", OUTBOX_DSN=database).json["kafka"] is None
    assert succeed("topic", "show", topic, "--json", **environment).json["kafka"]["partitions"] == 4


def test_an_unreachable_broker_is_named_with_the_next_step(
    database: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("outbox_relay.operations.kafka_topics.TIMEOUT_S", 0.5)
    ran = outbox("topic", "create", name, OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert ran.code == 1
    assert "127.0.0.1:1" in ran.err
    assert registered(database) == []
