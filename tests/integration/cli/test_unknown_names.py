"""Each command that takes the name of a topic or group refuses one that nothing has, and names the nearest."""

from __future__ import annotations

import click
import pytest

from outbox_relay.cli.main import main
from tests.support.command_tree import leaves
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert

TOPIC, GROUP = "orders-of-names", "shop-of-names"
WRONG_TOPIC, WRONG_GROUP = "orders-of-nams", "shop-of-nams"
WHY = ("--reason", "a test", "--yes")
UNKNOWN = {
    "topic alter": ["topic", "alter", WRONG_TOPIC, "--type", "MIXED"],
    "topic repartition": ["topic", "repartition", WRONG_TOPIC, "--to", "9"],
    "topic repartition --wait-for-group": [
        "topic",
        "repartition",
        TOPIC,
        "--to",
        "4",
        "--wait-for-group",
        "x",
    ],
    "topic pause": ["topic", "pause", WRONG_TOPIC, "--reason", "a test"],
    "topic resume": ["topic", "resume", WRONG_TOPIC],
    "topic on-growth": ["topic", "on-growth", WRONG_TOPIC, "pause"],
    "topic show": ["topic", "show", WRONG_TOPIC],
    "group show": ["group", "show", WRONG_GROUP],
    "checker check --group": ["checker", "check", "--group", WRONG_GROUP],
    "message send": ["message", "send", WRONG_TOPIC, "--body", "b"],
    "message ls --topic": ["message", "ls", "--topic", WRONG_TOPIC],
    "message ls --group": ["message", "ls", "--group", WRONG_GROUP],
    "holds ls --topic": ["holds", "ls", "--topic", WRONG_TOPIC],
    "holds release --topic": ["holds", "release", "--topic", WRONG_TOPIC],
    "holds dead --topic": ["holds", "dead", "--topic", WRONG_TOPIC, "--reason", "a test"],
    "holds skip --topic": ["holds", "skip", "--expired", "--topic", WRONG_TOPIC, "--reason", "a test"],
    "failover scan --topic": ["failover", "scan", "--since", "1h", "--topic", WRONG_TOPIC],
    **{
        f"dlq {verb} --{kind}": ["dlq", verb, f"--{kind}", wrong]
        for verb in ("ls", "export", "redrive", "discard")
        for kind, wrong in (("group", WRONG_GROUP), ("topic", WRONG_TOPIC))
    },
    "dlq summary --group": ["dlq", "summary", "--group", WRONG_GROUP],
    "consumers show": ["consumers", "show", WRONG_GROUP],
    "consumers unbind": ["consumers", "unbind", WRONG_GROUP],
    "consumers pause": ["consumers", "pause", WRONG_GROUP, "--reason", "r"],
    "consumers pause --topic": ["consumers", "pause", GROUP, "--topic", WRONG_TOPIC, "--reason", "r"],
    "consumers resume": ["consumers", "resume", WRONG_GROUP],
    "consumers resume --topic": ["consumers", "resume", GROUP, "--topic", WRONG_TOPIC],
    "consumers delete": ["consumers", "delete", WRONG_GROUP, "--reason", "r", "--yes"],
    "consumers reset": ["consumers", "reset", WRONG_GROUP, TOPIC, "--to", "last"],
    "consumers reset TOPIC": ["consumers", "reset", GROUP, WRONG_TOPIC, "--to", "last"],
    "consumers replay": ["consumers", "replay", WRONG_GROUP, "--topic", TOPIC, "--key", "k"],
    "consumers replay --topic": ["consumers", "replay", GROUP, "--topic", WRONG_TOPIC, "--key", "k"],
    "tail": ["tail", WRONG_TOPIC, "--from-beginning", "--timeout", "20"],
    "tx ls --group": ["tx", "ls", "--group", WRONG_GROUP],
    "tx ls --topic": ["tx", "ls", "--topic", WRONG_TOPIC],
    **{
        f"tx {verb} --{kind}": ["tx", verb, "--all", "--state", "UNKNOWN", *names, *WHY]
        for verb in ("commit", "rollback")
        for kind, names in (
            ("group", ["--group", WRONG_GROUP]),
            ("topic", ["--group", GROUP, "--topic", WRONG_TOPIC]),
        )
    },
}
"""The commands with a name that differs by one letter from one that exists."""

MAY_BE_NEW = {
    "dev --topic": "is created",
    "topic create": "is created",
    "topic register": "is registered",
    "group set": "is registered",
    "consumers bind": "is registered before its first member runs",
    "message send --group": "the first message of a group needs no registration",
    "checker run --group": "may start before the first half message of its group, and before PostgreSQL",
}
"""Names that need not exist, and why."""


def takes_names() -> set[str]:
    """Each command's arguments and options that name a topic or a group; an argument by the command alone."""
    found = set()
    for path, command in leaves(main):
        words = " ".join(path)
        for one in command.params:
            if isinstance(one, click.Argument):
                if one.name in {"group", "topic"} or (one.name == "name" and path[0] in {"topic", "group"}):
                    found.add(
                        f"{words} TOPIC" if path == ("consumers", "reset") and one.name == "topic" else words
                    )
            else:
                found |= {
                    f"{words} {name}"
                    for name in one.opts
                    if name in {"--group", "--topic", "--wait-for-group"}
                }
    return found


def test_each_name_is_refused_or_may_be_new() -> None:
    assert takes_names() == UNKNOWN.keys() | MAY_BE_NEW.keys()


@pytest.fixture
def world(database: str, conn: Connection, bootstrap_servers: str) -> dict[str, str]:
    """A topic and groups of the right names, with a half message to decide and a consumer that has run."""
    servers = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    ran = outbox("topic", "create", TOPIC, "--partitions", "4", **servers)
    if ran.code:  # another test of this run has made it in Kafka
        succeed("topic", "register", TOPIC, **servers)
    conn.execute("UPDATE outbox.topic SET partitions = 2 WHERE name = %s", [TOPIC])
    insert(conn, TOPIC, "k", "b", state="UNKNOWN", producer_group=GROUP)
    conn.execute(
        "INSERT INTO outbox.consumer_group (name, orderly, subscription)"
        " VALUES (%s, false, pg_catalog.jsonb_build_object(%s::text, '*'))",
        [GROUP, TOPIC],
    )
    return servers


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_name_is_refused_with_the_nearest(world: dict[str, str], case: str) -> None:
    for more in [(), ("--json",)] if "export" not in case else [()]:
        ran = outbox(*UNKNOWN[case], *more, **world)
        assert (ran.code, ran.out) == (1, ""), ran.out + ran.err
        if case.endswith("--wait-for-group"):
            # Kafka is asked for the names; which of them are near is other tests' doing.
            assert "--wait-for-group x: Kafka at " in ran.err
            assert " has no such consumer group" in ran.err
        else:
            assert f"Did you mean '{GROUP if WRONG_GROUP in UNKNOWN[case] else TOPIC}'?" in ran.err


def test_what_exists_and_has_nothing_to_show_is_an_empty_answer(world: dict[str, str]) -> None:
    for words in (
        ["dlq", "ls", "--group", GROUP, "--topic", TOPIC],
        ["dlq", "summary", "--group", GROUP],
        ["message", "ls", "--topic", TOPIC, "--group", GROUP, "--tag", "none"],
        ["tx", "ls", "--topic", TOPIC, "--group", GROUP, "--tag", "none"],
        ["group", "show", GROUP],
    ):
        succeed(*words, **world)
