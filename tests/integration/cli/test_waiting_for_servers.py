"""A command that waits for a server says so, once."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from outbox_relay.cli.main import main
from tests.support.command_tree import leaves
from tests.support.plain_inserts import Connection

AWAY = "127.0.0.1:1"
WORDS = {
    "topic create": ["other"],
    "topic register": ["other"],
    "topic alter": ["orders", "--max-message-bytes", "1000"],
    "topic repartition": ["orders", "--to", "9"],
    "topic show": ["orders"],
    "status": [],
    "doctor": [],
    "failover scan": ["--since", "1h"],
    "consumers ls": [],
    "consumers show": ["points"],
    "consumers delete": ["points", "--reason", "r", "--yes"],
    "consumers reset": ["points", "orders", "--to", "last"],
    "inbox ls": [],
    "inbox drop": [],
    "tail": ["orders"],
}
"""The commands that ask Kafka something, and end."""
OTHERS = {"dev", "up", "demo", "shop", "prove", "relay run", "metrics serve", "console", "etl reconcile"}
"""They start servers, or log."""


def test_each_command_says_once_that_it_waits_for_kafka(database: str, conn: Connection) -> None:
    takers = {
        " ".join(path)
        for path, command in leaves(main)
        if any(isinstance(one, click.Option) and "--bootstrap-servers" in one.opts for one in command.params)
    }
    assert takers == WORDS.keys() | OTHERS
    conn.execute("INSERT INTO outbox.topic (name, message_type, partitions) VALUES ('orders', 'MIXED', 4)")
    conn.execute(
        "INSERT INTO outbox.consumer_group (name, orderly, subscription) VALUES ('points', false, '{}')"
    )
    environment = {**os.environ, "PGOPTIONS": "", "OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": AWAY}
    running = {
        words: subprocess.Popen(
            [sys.executable, "-m", "outbox_relay", *words.split(), *more],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words, more in WORDS.items()
    }
    said = {words: process.communicate()[1] for words, process in running.items()}
    silent = {words: err for words, err in said.items() if err.count(f"waiting for Kafka at {AWAY} …\n") != 1}
    assert not silent


def test_a_command_whose_server_replies_says_nothing(database: str, bootstrap_servers: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "outbox_relay", "consumers", "ls"],
        env={
            **os.environ,
            "PGOPTIONS": "",
            "OUTBOX_DSN": database,
            "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "no consumer group\n"
