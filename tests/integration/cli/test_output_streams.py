"""What a command does when its standard output is full, or cannot encode what it is to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_relay.cli.main import main
from tests.support.command_tree import leaves
from tests.support.forked_commands import run_all
from tests.support.inbox_stage import InboxStage
from tests.support.plain_inserts import Connection, insert

FULL = Path("/dev/full")
SHOWING = [
    ["status"],
    ["message", "ls"],
    ["topic", "ls"],
    ["group", "ls"],
    ["group", "show", "grüße"],
    ["consumers", "ls"],
    ["dlq", "ls"],
    ["dlq", "summary"],
    ["holds", "ls"],
    ["relay", "ls"],
    ["tx", "ls"],
    ["key", "ls"],
    ["inbox", "ls", "--without-kafka"],
    ["failover", "ls"],
    ["db", "check"],
    ["db", "partitions"],
    ["config", "show", "relay", "run"],
    ["metrics", "ls"],
    ["metrics", "alerts"],
    ["history", "ls", "--without-warehouse"],
]
"""Commands that list or show something."""
TEXT_ONLY = [["db", "sql"], ["metrics", "dashboard"], ["db", "debezium"]]


@pytest.fixture
def inbox(database: str, bootstrap_servers: str) -> Iterator[InboxStage]:
    """Records in Kafka."""
    stage = InboxStage(database, bootstrap_servers)
    yield stage
    stage.close()


@pytest.fixture
def servers(database: str, conn: Connection, bootstrap_servers: str) -> dict[str, str]:
    """A database with names beyond Latin-1, and beyond ASCII."""
    insert(conn, "orders", "订单-17 😀", "b", state="UNKNOWN", producer_group="grüße")
    insert(conn, "orders", "kürzer", "b", tags=["bezahlt-€"])
    return {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}


def test_no_command_ends_with_a_traceback_on_a_full_device(servers: dict[str, str]) -> None:
    """Each command's help, and what each list and each command that writes much shows."""
    helps = [[*path, "--help"] for path, _ in leaves(main)]
    shown = [*SHOWING, *([*words, "--json"] for words in SHOWING), *TEXT_ONLY]
    commands = [*helps, ["--help"], ["--version"], *shown]
    for command, ended in zip(commands, run_all(commands, FULL, servers), strict=True):
        assert ended.code == 1, (command, ended)
        assert "Traceback" not in ended.err, (command, ended.err)
        assert "Exception ignored" not in ended.err, (command, ended.err)
        assert "cannot write standard output: No space left on device" in ended.err, (command, ended.err)


def test_messages_that_cannot_be_written_end_a_tail(
    servers: dict[str, str], inbox: InboxStage, topic: str
) -> None:
    inbox.produce(topic, "k", "body")
    inbox.flush()
    commands = [["tail", topic, "--from-beginning", *json_] for json_ in ([], ["--json"])]
    for ended in run_all(commands, FULL, servers):
        assert ended.code == 1
        assert "Traceback" not in ended.err
        assert "cannot write standard output: No space left on device" in ended.err


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
def test_what_an_encoding_lacks_is_escaped(servers: dict[str, str], tmp_path: Path, encoding: str) -> None:
    """One stream escapes for all commands: one encoding shows that each has it, the others what it does."""
    showing = SHOWING if encoding == "latin-1" else [["message", "ls"], ["group", "show", "grüße"]]
    commands = [*showing, *([*words, "--json"] for words in showing), *TEXT_ONLY]
    ends = run_all(commands, tmp_path, {**servers, "PYTHONIOENCODING": encoding})
    for number, (command, ended) in enumerate(zip(commands, ends, strict=True)):
        assert "Traceback" not in ended.err, (command, ended.err)
        assert ended.code == 0 or command[:2] in (["db", "check"], ["status", "--json"]), (command, ended)
        written = (tmp_path / str(number)).read_bytes()
        text = written.decode("utf-8" if encoding == "ascii" else encoding)
        if "--json" in command:
            document = json.loads(text)
            if command[:2] == ["message", "ls"]:
                assert {each["key"] for each in document} == {"订单-17 😀", "kürzer"}
        elif command == ["message", "ls"]:
            assert "kürzer" in text
            is_whole = encoding in {"utf-8", "ascii"}
            assert ("订单-17 😀" if is_whole else r"\u8ba2\u5355-17 \U0001f600") in text
