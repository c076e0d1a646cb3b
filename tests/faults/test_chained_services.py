"""Three services in a row, each with a database: the second applies what the first sends, and sends it on to the third.

All of them are killed at random, again and again, and every tenth message fails at its first attempt. In the end each
service has applied each message once, in the order of its key, and so has a stock client read what the second sent.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox_local.stack.api import Stack
from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.kafka_records import TopicReader
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

KEYS = 20
LEASE_S = 2
KILLS = 12
AFTER_EACH = 25
"""Messages that the last service applies between two kills."""


class Sender:
    """The first service: transactions of one to three messages, numbered within their keys, until it is stopped."""

    def __init__(self, dsn: str, topic: str, chance: random.Random) -> None:
        self._dsn, self._topic, self._chance = dsn, topic, chance
        self._stops = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        outbox, numbers = Outbox(producer_group="first"), itertools.count()
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._stops.wait(0.02):
                chosen = list(itertools.islice(numbers, self._chance.randint(1, 3)))
                with conn.transaction():
                    for number in chosen:
                        message = Message(self._topic, key=f"k{number % KEYS}", body=str(number).encode())
                        outbox.send(conn, message)
                self.sent += len(chosen)

    def stop(self) -> int:
        """Stop; return how many messages were sent."""
        self._stops.set()
        self._thread.join(60)
        return self.sent


@pytest.mark.feature("S-09", "S-90", "S-100")
def test_chained_services_that_are_killed_apply_each_message_once_in_order(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    seed = int(os.environ.get("OUTBOX_CHAOS_SEED") or secrets.randbelow(1_000_000))
    sys.stderr.write(f"OUTBOX_CHAOS_SEED={seed}\n")
    chance, servers = random.Random(seed), private_stack.bootstrap_servers
    first_dsn = make_private_database()
    orders, parcels = make_private_topic(), make_private_topic()
    second, third = (InboxStage(make_private_database(), servers) for _ in range(2))
    lease = ("--lease", str(LEASE_S))
    starts: dict[str, Callable[[], Any]] = {
        "first relay": lambda: RelayProcess(first_dsn, servers, *lease),
        "second relay": lambda: RelayProcess(second.dsn, servers, *lease),
        # The same static member, so that Kafka does not wait for the session of the one that was killed.
        "second consumer": lambda: ConsumerProcess(
            second, orders, "", sends_to=parcels, fails=3, group_instance_id="second"
        ),
        "third consumer": lambda: ConsumerProcess(third, parcels, "", fails=7, group_instance_id="third"),
    }
    journal: list[str] = []
    with ExitStack() as exits:
        running = {name: exits.enter_context(start()) for name, start in starts.items()}
        sender = Sender(first_dsn, orders, chance)
        for name in [*starts, *chance.choices(list(starts), k=KILLS - len(starts))]:
            third.wait_applied(third.count("applied") + chance.randint(1, AFTER_EACH))
            journal.append(f"{name} after {third.count('applied')}")
            running[name].process.kill()
            running[name].process.wait()
            running[name] = exits.enter_context(starts[name]())
        total = sender.stop()
        expected = {f"k{key}": list(range(key, total, KEYS)) for key in range(KEYS)}
        wait_until(
            lambda: second.count("applied") >= total and third.count("applied") >= total,
            f"{total} messages are applied; seed {seed}, {journal}",
        )
        for stage in (second, third):
            wait_until(lambda stage=stage: stage.count("outbox.inbox_held_key") == 0, "no key is held")  # type: ignore[misc]
        for name in ("second consumer", "third consumer", "first relay", "second relay"):
            running[name].stop()
    for stage in (second, third):
        assert stage.by_key() == expected, f"seed {seed}, {journal}"
        assert stage.count("outbox.inbox") == total
        assert stage.count("outbox.inbox_parked") == 0
    assert second.count("outbox.message") == total, "the second service sent each message once"
    first_seen: dict[str, list[int]] = {}
    reader, ids = TopicReader(servers, parcels), set()
    try:
        for record in reader.read():
            if record.message_id not in ids:
                ids.add(record.message_id)
                assert record.key is not None
                assert record.value is not None
                first_seen.setdefault(record.key.decode(), []).append(int(record.value))
    finally:
        reader.close()
    assert first_seen == expected, f"seed {seed}, {journal}"
    for stage in (second, third):
        stage.close()
