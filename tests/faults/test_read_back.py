"""Relays that are killed between acknowledgements and their record leave no duplicate: their successors read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support.background_load import NumberedLoad
from tests.support.bystander import Bystander
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic

pytestmark = pytest.mark.xdist_group("private stack")

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
OPTIONS = ("--lease", "1", "--page", "100")
STEPS = (
    ("publisher.hands.wires:Wires.take_acknowledged", "after", 2),
    ("publisher.hands.writes:Writes.rider", "before", 3),
    ("publisher.hands.wires:Wires.take_acknowledged", "after", 5),
    ("publisher.hands.writes:Writes.commit", "before", 6),
    ("publisher.hands.wires:Wires.serve", "after", 9),
    ("publisher.core.streams:Streams.acknowledged", "after", 7),
)
"""Each has acknowledged messages, and no record of them."""
FOUND = "messages in doubt are in Kafka"


@pytest.mark.feature("H-43")
def test_killed_relays_leave_no_duplicates(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """After each kill a relay settles what is in doubt: one that dies meanwhile, too, may leave duplicates."""
    database, topic = make_private_database(), make_private_topic()
    servers = private_stack.bootstrap_servers
    load, found = NumberedLoad(database, topic, before=1000, few=20, pause=0.05, is_narrow=False), 0
    with connect(database) as conn, load.running():
        bystander = Bystander(conn, make_private_topic(), servers)
        for step, when, number in STEPS:
            entry = (ENTRY, step, when, str(number))
            with RelayProcess(database, servers, *OPTIONS, entry=entry) as relay:
                relay.wait_until_it_kills_itself()
            with RelayProcess(database, servers, *OPTIONS) as relay:
                relay.wait_until_running()
                bystander.flows()
                wait_published(conn)
                relay.stop()
            assert relay.find("messages in doubt are published again") is None, relay.output()
            found += sum(event["messages"] for event in relay.events if event["event"] == FOUND)
    with connect(database) as conn, RelayProcess(database, servers, *OPTIONS) as relay:
        wait_published(conn)
        relay.stop()
    result = compare(read_topic(servers, topic), load.committed)
    assert not result.broken
    assert found > 0, "the kills left nothing in doubt that Kafka had"
    assert result.duplicate_records == 0
    bystander.check()
