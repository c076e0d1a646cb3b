"""A relay whose lanes are another one's sends no page of a list, though what the list is of was flushed long ago."""

from __future__ import annotations

import math

import pytest

from outbox_relay.publisher.lease import LeaseLostError
from outbox_relay.publisher.read_ahead import ListAhead
from tests.support.plain_inserts import Connection, insert_numbered
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.servers import MakeTopic

PAGE = 10


def test_a_relay_that_has_lost_its_lanes_sends_no_page_of_a_list(
    database: str, conn: Connection, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    insert_numbered(conn, topic, 20 * PAGE)
    with relay_session(database, bootstrap_servers, page=PAGE, clean=False) as session:
        loop = loop_of(session)
        turn_until(session, lambda: session.counts.recorded >= 2 * PAGE, "pages of the list are published")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ListAhead, "is_ready", False)
            turn_until(session, lambda: not loop.core.memory.rows, "all that was read is recorded")
        assert loop.core.sources.catch_ups
        assert session.counts.recorded < 20 * PAGE
        conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another'")
        loop.reads.ours_at = -math.inf  # long before that
        handed = loop.wires.handed

        def is_lost() -> bool:
            try:
                session.run_once(0.005)
            except LeaseLostError:
                return True
            return False

        with pytest.MonkeyPatch.context() as patch:
            # Not before the page is read.
            patch.setattr(type(session), "hand_over", lambda _: None)
            turns = [is_lost() for _ in range(4)]
        assert any(turns)
        assert loop.wires.handed == handed
