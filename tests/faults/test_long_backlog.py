"""A backlog that is taken from its list in several parts, and relays that die before, between and behind the parts.

The list is a cursor of the dead relay's session and goes with it. Its successor lists what is left from the progress
that is recorded: nothing of it is lost or out of order, and what was published and not recorded comes again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox_relay.publisher.polls import AT_ONCE
from tests.support.bare_reader import Reading
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
ROWS = 2 * AT_ONCE + 1_001
"""Three parts of a list, the last one small."""
TAKE = "publisher.polls:Listing.take"


def test_a_backlog_of_three_parts_is_read_once_and_in_order(database: str) -> None:
    reading = Reading(database, page=5_000)
    try:
        insert_numbered(reading.conn, "t", ROWS)
        insert_numbered(reading.conn, "t", 10, start=ROWS)
        found = reading.read()
        assert len(found) == ROWS + 10
        assert found == sorted(set(found))
        assert reading.conn.execute("SELECT count(*) FROM pg_cursors").fetchone() == (0,), (
            "the list is closed"
        )
    finally:
        reading.close()


@pytest.mark.parametrize(
    "deaths", [[("before", 1), ("after", 1)], [("before", 2), ("after", 2)], [("after", 2), ("after", 2)]]
)
def test_relays_that_die_between_the_parts_of_a_list_lose_and_reorder_nothing(
    database: str, bootstrap_servers: str, topic: str, deaths: list[tuple[str, int]]
) -> None:
    with connect(database) as conn:
        with RelayProcess(database, bootstrap_servers, "--lease", "1") as relay:
            insert_numbered(conn, topic, 10)
            wait_published(conn)
            relay.stop()
        insert_numbered(conn, topic, ROWS, start=10)
        for when, number in deaths:
            entry = (ENTRY, TAKE, when, str(number))
            with RelayProcess(database, bootstrap_servers, "--lease", "1", entry=entry) as relay:
                relay.wait_until_it_kills_itself()
        insert_numbered(conn, topic, 10, start=ROWS + 10)
        with RelayProcess(database, bootstrap_servers, "--lease", "1") as relay:
            wait_published(conn)
            relay.stop()
    found = compare(read_topic(bootstrap_servers, topic), numbered(ROWS + 20))
    assert not found.broken
    assert found.duplicate_records < ROWS, "what was recorded did not come again"
