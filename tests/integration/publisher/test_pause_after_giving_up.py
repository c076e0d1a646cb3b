"""A topic is stated to be paused once nothing of it may arrive any more, also of what was given up.

Schedule: a partition is silent, and what it has on the wire is given up: it waits in the table. Another partition waits
for something else, so the producer stays, and may deliver what was given up. An operator pauses the topic.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from outbox_relay.publisher.hands.silence import Silence
from outbox_relay.publisher.hands.wires import Wire
from tests.support.deaf_wires import deaf_to
from tests.support.plain_inserts import connect
from tests.support.publications import value
from tests.support.relay_thread import RelayThread
from tests.support.topic_parking import TopicParking
from tests.support.waiting import wait_until

GENERATION = "SELECT generation FROM outbox.topic_generation"
STATED = "SELECT topics_seen - pg_catalog.cardinality(topics_behind) FROM outbox.lease"
LEASED = "SELECT leased_until FROM outbox.lease"


def test_a_pause_is_not_stated_while_what_was_given_up_may_arrive(
    database: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        patient = {topics.well}
        silent = Silence.silent

        def but_patient(silence: Silence, wires: Collection[Wire], now: float) -> dict[tuple[str, int], str]:
            return {
                name: reason for name, reason in silent(silence, wires, now).items() if name[0] not in patient
            }

        monkeypatch.setattr(Silence, "silent", but_patient)
        with RelayThread(database, bootstrap_servers, ack_timeout=1.0, lease=1.0) as running:
            with deaf_to(topics.sick, topics.well):
                with conn.transaction():
                    topics.send()
                running.wait_for("partition is held", topic=topics.sick)
                topics.pause()
                running.wait_for("topic is held", topic=topics.sick)
                for _ in range(2):
                    until = value(conn, LEASED)
                    wait_until(lambda until=until: value(conn, LEASED) != until, "the lease is renewed")  # type: ignore[misc]
                assert value(conn, STATED) < value(conn, GENERATION), "the producer may deliver"
                patient.clear()
                running.wait_for("partition is held", topic=topics.well)
            wait_until(lambda: value(conn, STATED) == value(conn, GENERATION), "it states the pause")
            topics.resume()
            wait_until(lambda: not topics.reasons, "all of it goes on")
            wait_until(topics.is_settled, "all of it is published")
    for topic in (topics.sick, topics.well):
        topics.check(topic, range(1), repeated=True)
