"""A topic goes over to more partitions under load, and a consumer group that lags reads each key in its order.

The group is waited for. Relays die or sleep meanwhile. The order is that in which the group reads, over all partitions:
without the wait it reads newer messages in the new partitions while older ones of their keys are in the old ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from outbox_local.stack.api import Stack
from tests.faults.test_hand_over_steps import has_all
from tests.faults.test_kill_at_each_step import ENTRY
from tests.faults.test_repartition_under_load import (
    AFTER,
    BEFORE,
    OPTIONS,
    RELAY,
    ManyKeys,
    wait_for_more,
)
from tests.support.group_reader import GroupReader
from tests.support.moved_keys import grow
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

USE = "publisher.core.topics:TopicCounts.move"
STEPS: dict[str, tuple[str, ...]] = {
    "undisturbed": (),
    "dies when the topic is held": ("held",),
    "dies before it uses the new count": (USE, "before", "1"),
    "sleeps before it uses the new count": (USE, "pauses before", "1"),
}
HELD = "SELECT FROM outbox.topic WHERE repartition_to IS NOT NULL"
WAITING = "SELECT FROM outbox.waiting LIMIT 1"


@contextmanager
def reading(reader: GroupReader) -> Iterator[Event]:
    """Read and commit until the end of a block, slower than it is written until the event that is yielded is set."""
    end, hurries = Event(), Event()

    def read() -> None:
        while not end.wait(0.1):
            if reader.poll(most=100 if hurries.is_set() else 2):
                reader.commit()

    thread = Thread(target=read)
    thread.start()
    try:
        yield hurries
    finally:
        end.set()
        thread.join()


def wrong_of_reading(reader: GroupReader, committed: Iterable[tuple[str, int]]) -> str:
    """Compare what the group read, each message as it came first, with what was committed."""
    seen: dict[str, list[int]] = {}
    for record in reader.read:
        key, version = bytes(record.value() or b"").decode().split(":")
        versions = seen.setdefault(key, [])
        if int(version) not in versions:
            versions.append(int(version))
    expected: dict[str, list[int]] = {}
    for key, number in committed:
        expected.setdefault(key, []).append(number)
    wrong = [f"{key}: {seen.get(key)}" for key in sorted(expected) if seen.get(key) != expected[key]]
    return "; ".join(wrong[:3])


def move(servers: str, database: str, topic: str, strike: tuple[str, ...]) -> str:
    """Repartition with two relays, one of which is struck; return what is wrong of what the group has read."""
    load = ManyKeys(database, topic)
    with ExitStack() as stack:
        conn = stack.enter_context(connect(database))
        by_itself = len(strike) == 3
        entry = (ENTRY, *strike) if by_itself else (RELAY,)
        struck, other = (
            stack.enter_context(RelayProcess(database, servers, *OPTIONS, entry=which)).wait_until_joined()
            for which in (entry, (RELAY,))
        )
        reader = stack.enter_context(GroupReader(servers, topic))
        with load.running():
            wait_for_more(conn, 300)
            grow(servers, topic, AFTER)
            with reading(reader) as hurries:
                wait_until(lambda: len(reader.read) > 0, "the group reads")
                told = stack.enter_context(tempfile.NamedTemporaryFile("w"))
                command = stack.enter_context(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "outbox_relay", "topic", "repartition", topic),
                            *("--to", str(AFTER), "--wait-for-group", reader.group, "--dsn", database),
                            *("--bootstrap-servers", servers),
                        ],
                        stdout=subprocess.DEVNULL,
                        stderr=told,
                    )
                )

                def waits_for_the_group() -> bool:
                    return "offsets to read" in Path(told.name).read_text()

                wait_until(
                    lambda: command.poll() is not None or waits_for_the_group(),
                    "the topic is held, and the group lags",
                )
                assert waits_for_the_group(), Path(told.name).read_text()
                assert conn.execute(HELD).fetchone() is not None
                hurries.set()
                if strike == ("held",):
                    struck.process.kill()
                assert command.wait(100) == 0, Path(told.name).read_text()
                if by_itself and strike[1].startswith("pauses"):
                    struck.wait_until_it_pauses_itself()
                    wait_until(lambda: has_all(conn, other), "the other one has all lanes")
                    struck.go_on()
                elif strike:
                    struck.wait_until_it_kills_itself()
                wait_for_more(conn, 200)
        wait_until(lambda: conn.execute(WAITING).fetchone() is None, "what was held is published")
        wait_published(conn)
        for relay in (struck, other):
            assert "Traceback" not in relay.output(), relay.output()
        wanted = set(load.committed)

        def has_read_all() -> bool:
            reader.poll()
            texts = (bytes(one.value() or b"").decode().split(":") for one in reader.read)
            return wanted <= {(key, int(version)) for key, version in texts}

        wait_until(has_read_all, "the group has read all")
        assert any(int(one.partition() or 0) >= BEFORE for one in reader.read), "keys have moved"
        return wrong_of_reading(reader, load.committed)


@pytest.mark.feature("S-102")
def test_a_group_that_lags_reads_each_key_in_order_across_the_move(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """Two at once, each with its own database."""
    servers = private_stack.bootstrap_servers
    places = {name: (make_private_database(), make_private_topic(BEFORE)) for name in STEPS}
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(move, servers, *places[name], strike) for name, strike in STEPS.items()}
    assert {name: broken for name, each in running.items() if (broken := each.result())} == {}
