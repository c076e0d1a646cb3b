"""A topic goes over to more partitions while two relays publish it and one of them dies or sleeps at each step of it.

Nothing is lost or invented; by the broker's clock each message appears first behind the one in front of it, and a key
that has moved does not go back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from outbox.partitioning.selectors import partition_of
from outbox_local.stack.api import Stack
from tests.faults.test_hand_over_steps import has_all
from tests.faults.test_kill_at_each_step import ENTRY
from tests.support.background_load import BackgroundLoad
from tests.support.kafka_records import read_topic
from tests.support.moved_keys import grow, moved, wrong_of_moved
from tests.support.plain_inserts import Connection, connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import ENTRY as RELAY_ENTRY
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

RELAY = str(RELAY_ENTRY)
KEYS, BEFORE, AFTER, AT_ONCE = 200, 4, 8, 3
ALL_KEYS = [f"k{number}".encode() for number in range(KEYS)]
OPTIONS = ("--lease", "1")
PUBLISHED = "SELECT coalesce(sum(pg_catalog.cardinality(positions)), 0) FROM outbox.publication"
UNPUBLISHED = """
    SELECT FROM outbox.message_status m WHERE m.status = 'COMMITTED' AND m.position <= %s LIMIT 1
"""
MOVES = "topic moves its keys"
FIND, USE = "publisher.core.core:Core.is_moving", "publisher.core.topics:TopicCounts.move"

STEPS: dict[str, tuple[str, str, int] | None] = {
    "undisturbed": None,
    "dies when it finds the change": (FIND, "after", 1),
    "dies before it uses the change": (USE, "before", 1),
    "dies after it uses the change": (USE, "after", 1),
    "sleeps when it finds the change": (FIND, "pauses after", 1),
    "sleeps before it uses the change": (USE, "pauses before", 1),
    "sleeps after it uses the change": (USE, "pauses after", 1),
}


class ManyKeys(BackgroundLoad):
    """Transactions of ten messages, hundreds a second over all keys, until the end of a block."""

    def __init__(self, dsn: str, topic: str) -> None:
        super().__init__()
        self._dsn, self._topic = dsn, topic
        self.committed: list[tuple[str, int]] = []

    def _write(self) -> None:
        with connect(self._dsn) as conn:
            while not self._end.wait(0.02):
                start = len(self.committed)
                insert_numbered(conn, self._topic, 10, keys=KEYS, start=start)
                self.committed += numbered(10, keys=KEYS, start=start)


def wait_for_more(conn: Connection, more: int) -> None:
    """Wait until so many further messages are published."""
    row = conn.execute(PUBLISHED).fetchone()
    assert row is not None
    goal = row[0] + more
    wait_until(
        lambda: conn.execute(
            f"{PUBLISHED} HAVING sum(pg_catalog.cardinality(positions)) >= {goal}"
        ).fetchone(),
        f"{more} more messages are published",
    )


def wait_until_published(conn: Connection, newest: tuple[str, int]) -> None:
    """Wait until nothing is unpublished that was committed before this message or with it."""
    row = conn.execute(
        "SELECT max(position) FROM outbox.message WHERE body = %s", [f"{newest[0]}:{newest[1]}".encode()]
    )
    values = row.fetchone()
    wait_until(
        lambda: conn.execute(UNPUBLISHED, values).fetchone() is None, "what was committed is published"
    )


def repartition(servers: str, database: str, topic: str) -> list[dict[str, Any]]:
    """Run the command in a process of its own, and return what it says of the relays."""
    ran = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "outbox_relay",
                "topic",
                "repartition",
                topic,
                "--to",
                str(AFTER),
                "--json",
            ),
            *("--dsn", database, "--bootstrap-servers", servers),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    relays: list[dict[str, Any]] = json.loads(ran.stdout)["relays"]
    return relays


def move_under_load(servers: str, database: str, topic: str, strike: tuple[str, str, int] | None) -> str:
    """Repartition with two relays, one of which is struck at this step; return what is wrong in the end."""
    load = ManyKeys(database, topic)
    with ExitStack() as stack:
        conn = stack.enter_context(connect(database))

        def start(*entry: str) -> RelayProcess:
            relay = RelayProcess(database, servers, *OPTIONS, entry=entry)
            return stack.enter_context(relay).wait_until_joined()

        struck = start(*((RELAY,) if strike is None else (ENTRY, *map(str, strike))))
        other = start(RELAY)
        with load.running():
            wait_for_more(conn, 500)
            grow(servers, topic, AFTER)
            wait_for_more(conn, 100)
            relays = repartition(servers, database, topic)
            assert relays
            assert all(relay["has_applied"] for relay in relays)
            if strike is not None and strike[1].startswith("pauses"):
                struck.wait_until_it_pauses_itself()
                wait_until(lambda: has_all(conn, other), "the other one has all lanes")
                wait_until_published(conn, load.committed[-1])
                struck.go_on()
            elif strike is not None:
                struck.wait_until_it_kills_itself()
            if strike is None:  # else the other one takes the lanes, and begins with the new count
                struck.wait_for(MOVES, topic=topic, before=BEFORE, partitions=AFTER)
            wait_for_more(conn, 3 * KEYS)
        wait_published(conn)
        for relay in (struck, other):
            assert "Traceback" not in relay.output(), relay.output()
            if relay.is_running:
                relay.stop()
    records = read_topic(servers, topic)
    found = moved(records, BEFORE)
    moves = [key for key in ALL_KEYS if partition_of(None, key, AFTER) >= BEFORE]
    # The load goes through the keys in turn, and each of them comes at least three times after the move.
    assert len(moves) > KEYS / 3
    assert [key for key in moves if found[key] < 2] == [], "they are at their new places"
    # What a process that was killed had on the wire may arrive late: behind it in the log, and in an old partition.
    may_go_back = strike is not None and strike[0] == FIND and not strike[1].startswith("pauses")
    return wrong_of_moved(records, load.committed, BEFORE, AFTER, may_go_back=may_go_back)


@pytest.mark.feature("S-102")
def test_keys_keep_their_order_when_a_relay_dies_or_sleeps_while_they_move(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """Several at once, each with its own database."""
    servers = private_stack.bootstrap_servers
    places = {
        name: (make_private_database(), make_private_topic(BEFORE, message_timestamp_type="LogAppendTime"))
        for name in STEPS
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(move_under_load, servers, *places[name], step) for name, step in STEPS.items()
        }
    assert {name: broken for name, each in running.items() if (broken := each.result())} == {}
