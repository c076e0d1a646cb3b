"""A relay dies, or sleeps past its lease, before or after any step of handing lanes over; another one goes on.

Nothing is lost, invented or out of order; the lanes of the one that died or slept are the other's soon.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from outbox_local.stack.api import Stack
from tests.faults.test_kill_at_each_step import ENTRY, OPTIONS, Load
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

AT_ONCE = 4
JOINS, TAKES, GIVES, STOPS = (
    "joins one that leads",
    "takes the lanes before a second one joins",
    "drains while a second one stands by",
    "is stopped while a second one stands by",
)

STEPS = {
    "joining": ("publisher.lease:join", 1, JOINS),
    "reading who leads": ("publisher.leading:Leadership.read", 3, JOINS),
    "taking the lanes": ("publisher.lease:Lease.take", 1, TAKES),
    "inside the transaction that takes": ("publisher.lease:read_floors", 1, TAKES),
    "reading lanes no more": ("publisher.loop:Loop.stop", 1, GIVES),
    "giving lanes back": ("publisher.lease:Lease.give_back", 1, GIVES),
    "giving all lanes back": ("publisher.lease:Lease.release", 1, STOPS),
}
WHEN = [
    pytest.param("after", id="dies after"),
    pytest.param("pauses before", id="sleeps before"),
    pytest.param("before", id="dies before", marks=pytest.mark.long),
    pytest.param("pauses after", id="sleeps after", marks=pytest.mark.long),
]


def owner_of(relay: RelayProcess) -> str:
    """Return the name of a relay that has taken lanes."""
    return str(relay.wait_for("lanes taken")["owner"])


def has_all(conn: Connection, relay: RelayProcess) -> bool:
    """Whether a relay owns all lanes."""
    row = conn.execute(
        "SELECT count(*) FROM outbox.lane WHERE split_part(owner, ':', 2) = %s", [str(relay.pid)]
    )
    return row.fetchone() == (8,)


def wait_all_published(conn: Connection) -> None:
    """Wait until nothing is left to publish, the delayed messages included."""
    wait_published(conn)
    waiting = "SELECT count(*) FROM outbox.waiting"
    wait_until(lambda: conn.execute(waiting).fetchone() == (0,), "delayed messages are released")
    wait_published(conn)


def hand_over(servers: str, database: str, topic: str, step: str, when: str) -> str:
    """Let one of two relays die or sleep at this step; return what is wrong when all is published."""
    name, number, role = STEPS[step]
    load = Load(database, topic)
    with ExitStack() as stack:
        conn = stack.enter_context(connect(database))

        def start(*entry: str) -> RelayProcess:
            if entry:
                return stack.enter_context(RelayProcess(database, servers, *OPTIONS, entry=entry))
            return stack.enter_context(RelayProcess(database, servers, *OPTIONS))

        with load.running():
            if role == JOINS:
                other = start().wait_until_running()
                struck = start(ENTRY, name, when, str(number))
            elif role == TAKES:
                struck = start(ENTRY, name, when, str(number))
                if when.startswith("pauses"):
                    struck.wait_until_it_pauses_itself()
                else:
                    struck.wait(60)
                other = start()
            else:
                struck = start(ENTRY, name, when, str(number)).wait_until_running()
                other = start()
                other.wait_for("standing by")
                if role == GIVES:
                    conn.execute(
                        "UPDATE outbox.lease SET is_draining = true WHERE owner = %s", [owner_of(struck)]
                    )
                else:
                    struck.terminate()
            if when.startswith("pauses"):
                struck.wait_until_it_pauses_itself()
                wait_until(lambda: has_all(conn, other), f"the other has all lanes, {when} {step}")
                struck.go_on()
            else:
                struck.wait_until_it_kills_itself()
                wait_until(lambda: has_all(conn, other), f"the other has all lanes, {when} {step}")
        wait_all_published(conn)
        for relay in (struck, other):
            assert "Traceback" not in relay.output(), relay.output()
            if relay.is_running:
                relay.stop()
    return compare(read_topic(servers, topic), load.committed).broken


@pytest.mark.parametrize("when", WHEN)
def test_a_relay_may_die_or_sleep_at_any_step_of_a_hand_over(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic, when: str
) -> None:
    """Several at once, each with its own database: a relay that waits for a lease is idle."""
    places = {step: (make_private_database(), make_private_topic()) for step in STEPS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        servers = private_stack.bootstrap_servers
        running = {
            step: pool.submit(hand_over, servers, *place, step, when) for step, place in places.items()
        }
    assert {step: broken for step, each in running.items() if (broken := each.result())} == {}


def test_a_relay_stopped_after_another_took_its_lanes_ends_in_order(
    private_stack: Stack, private_database: str, make_private_topic: MakeTopic
) -> None:
    """What it had on the wire is published again by the other: nobody needs to be told of it by an exit code."""
    servers, topic = private_stack.bootstrap_servers, make_private_topic()
    load = Load(private_database, topic)
    commit = (ENTRY, "publisher.hands.writes:Writes.commit", "pauses before", "4")
    with ExitStack() as stack:
        conn = stack.enter_context(connect(private_database))
        struck = stack.enter_context(RelayProcess(private_database, servers, *OPTIONS, entry=commit))
        with load.running():
            struck.wait_until_it_pauses_itself()
            other = stack.enter_context(RelayProcess(private_database, servers, *OPTIONS))
            wait_until(lambda: has_all(conn, other), "the other has all lanes")
            struck.terminate()
            struck.go_on()
            assert struck.wait(60) == 0, struck.output()
        assert "lanes lost" in struck.output(), struck.output()
        wait_all_published(conn)
        other.stop()
    assert compare(read_topic(servers, topic), load.committed).broken == ""
