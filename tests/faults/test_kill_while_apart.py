"""Relays die while the backlog of one topic is read apart from another topic that goes on; the next one carries on.

Nothing is lost or out of order in either topic, and what was recorded of the backlog does not come again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
OPTIONS = ("--lease", "1", "--page", "100")
BACKLOG = 10_000  # before each death: the relay that dies may have recorded all of it
STEPS = {
    "recording": ("publisher.hands.writes:Writes._records", 2),
    "noting what is recorded": ("publisher.loop:Loop._written", 2),
    "making the list": ("publisher.finder:Finder.backlog", 1),
    "taking a page of the list": ("publisher.read_ahead:ListAhead.take", 4),
    "splitting": ("publisher.core.sources:Sources.put_apart", 1),
    "becoming one again": ("publisher.hands.reads:Reads._together", 1),
}


@pytest.mark.parametrize(("step", "number"), STEPS.values(), ids=STEPS)
def test_relays_that_die_while_a_topic_is_apart_lose_and_reorder_nothing(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, step: str, number: int
) -> None:
    many, few = make_topic(), make_topic()
    with connect(database) as conn:
        with RelayProcess(database, bootstrap_servers, *OPTIONS) as relay:
            insert_numbered(conn, many, 10)
            wait_published(conn)
            relay.stop()
        for turn, when in enumerate(("before", "after")):
            insert_numbered(conn, many, BACKLOG, start=10 + BACKLOG * turn)
            insert_numbered(conn, few, 10, start=10 * turn)
            with RelayProcess(
                database, bootstrap_servers, *OPTIONS, entry=(ENTRY, step, when, str(number))
            ) as relay:
                relay.wait_until_it_kills_itself()
        insert_numbered(conn, many, 10, start=2 * BACKLOG + 10)
        with RelayProcess(database, bootstrap_servers, *OPTIONS) as relay:
            wait_published(conn)
            relay.stop()
    findings = compare(read_topic(bootstrap_servers, many), numbered(2 * BACKLOG + 20))
    assert not findings.broken
    assert findings.duplicate_records < 2 * BACKLOG, "what was recorded did not come again"
    assert not compare(read_topic(bootstrap_servers, few), numbered(20)).broken
