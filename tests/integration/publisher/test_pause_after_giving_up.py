"""A topic is stated to be paused once nothing of it may arrive any more, also of what lanes wait for no longer.

Schedule: a lane gives up what it has on the wire, because its partition has no leader, or is silent. Another lane waits
for something else, so the producer stays, and may deliver what was given up. An operator pauses the topic.
"""

from __future__ import annotations

import pytest

from outbox_relay.publisher.errors import Unpublishable
from tests.support.deliveries import learn_nothing_of
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.topic_parking import LANES, TopicParking

REGISTRY = "SELECT generation FROM outbox.topic_generation"


@pytest.mark.parametrize("code", ["LEADER_NOT_AVAILABLE", "PARTITION_UNAVAILABLE", "of a drain"])
def test_a_pause_is_not_stated_while_what_was_given_up_may_arrive(
    database: str, bootstrap_servers: str, code: str
) -> None:
    given_up, waits = LANES
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send()
        topics.settle(session)
        if code == "of a drain":
            topics.pause()
            topics.follow(session)
            insert(conn, topics.sick, topics.keys[topics.sick][0], "waits")
            topics.settle(session)
            topics.resume()
            topics.follow(session)
        learn_nothing_of(session)
        if code != "of a drain":
            insert(conn, topics.sick, topics.keys[topics.sick][0], "given up")
        turn_until(session, lambda: given_up in session._publisher.aside, "the lane waits")
        insert(conn, topics.well, topics.keys[topics.well][1], "waits")
        turn_until(session, lambda: waits in session._publisher.aside, "another lane waits")
        deaf = session._publisher
        session._give_up(given_up, Unpublishable(code.partition(" ")[0], "for a test"))
        assert set(deaf.aside) == {waits}
        topics.pause()
        (seen,) = conn.execute(REGISTRY).fetchone() or (0,)
        turn_until(
            session, lambda: session._publisher.topics._current == seen, "the relay knows of the pause"
        )
        session._follow_topics()
        assert session._publisher is deaf
        assert session._lease.topics_seen < seen, "the producer may deliver what was given up"
        session._give_up(waits, Unpublishable("LEADER_NOT_AVAILABLE", "for a test"))
        turn_until(session, lambda: session._lease.topics_seen == seen, "the relay states the pause")
        assert session._publisher is not deaf
        topics.resume()
        turn_until(session, lambda: not topics.reasons and not session.stopped, "all of it goes on")
        topics.settle(session)
