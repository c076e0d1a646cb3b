"""Exactly-once delivery: a relay that dies at any step, or pauses, or meets a frozen Kafka, repeats and loses nothing.

Topics are read as consumers of committed messages read them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from tests.support.background_load import NumberedLoad
from tests.support.bystander import Bystander
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
AT_ONCE = 6
BESIDE_A_BYSTANDER = 3
"""Relays that start side by side take the processors, and the bystander's time is measured."""
OPTIONS = ("--lease", "1", "--page", "100", "--delivery", "exactly-once")
WIRES = "publisher.hands.transactional:TransactionalWires"

STEPS = {
    "joining": ("publisher.lease:join", 1),
    "taking the lanes": ("publisher.lease:Lease.take", 1),
    "beginning a shard": ("publisher.hands.proving:Proving._begin", 1),
    "reading the offset": (f"{WIRES}.offset", 2),
    "fencing": ("publisher.hands.senders:fence", 2),
    "committing a batch without messages": (f"{WIRES}.commit_nothing", 1),
    "recording what is proven": ("publisher.hands.proving:Proving._record", 1),
    "sealing a batch": ("publisher.hands.exactly_once:ExactlyOnce.seal", 4),
    "writing an intent": ("publisher.hands.writes:Writes._intend", 3),
    "writing an intent with what is recorded": ("publisher.hands.writes:Writes._in_one_commit", 4),
    "beginning a transaction": (f"{WIRES}.begin", 3),
    "handing messages over": (f"{WIRES}._hand_over", 7),
    "sending the offset": (f"{WIRES}._send_offset", 4),
    "noting that a batch is produced": ("publisher.core.transactions:Transactions.produced", 3),
    "asking Kafka to end a transaction": (f"{WIRES}.commit", 3),
    "ending a transaction": (f"{WIRES}._end_transaction", 4),
    "noting that a batch is committed": ("publisher.core.transactions:Transactions.committed", 3),
    "recording": ("publisher.hands.writes:Writes.commit", 4),
}


def wrong_with(servers: str, load: NumberedLoad, topic: str) -> str:
    """Return what is wrong with what consumers get; each message comes once."""
    found = compare(read_topic(servers, topic), load.committed)
    return found.broken or (f"{found.duplicate_records} twice" if found.duplicate_records else "")


def publish_all(servers: str, database: str) -> None:
    """Run a relay until everything is published."""
    with connect(database) as conn, RelayProcess(database, servers, *OPTIONS) as relay:
        relay.wait_for("lanes taken")
        wait_published(conn)
        relay.stop()


def die_and_recover(servers: str, database: str, topic: str, step: str, number: int) -> str:
    """Let one relay die before a step and its successor after it; answer what is wrong when a third is done."""
    load = NumberedLoad(database, topic)
    if step.endswith("_record"):
        publish_all(servers, database)  # there is something to prove from now on
    with load.running():
        for when in ("before", "after"):
            entry = (ENTRY, step, when, str(number))
            with RelayProcess(database, servers, *OPTIONS, entry=entry) as relay:
                relay.wait_until_it_kills_itself()
    publish_all(servers, database)
    return wrong_with(servers, load, topic)


@pytest.mark.feature("H-44")
def test_a_relay_may_die_before_and_after_any_step_of_a_batch(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    places = {name: (make_private_database(), make_private_topic()) for name in STEPS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(die_and_recover, private_stack.bootstrap_servers, *places[name], *STEPS[name])
            for name in STEPS
        }
    assert {name: broken for name, run in running.items() if (broken := run.result())} == {}


PAUSES = {
    "before its intent is written": ("publisher.hands.writes:Writes._intend", "pauses before", 4),
    "behind its intent": (f"{WIRES}.begin", "pauses before", 4),
    "with a transaction open": (f"{WIRES}._send_offset", "pauses after", 4),
    "before it ends a transaction": (f"{WIRES}._end_transaction", "pauses before", 4),
    "behind the end of a transaction": (f"{WIRES}._end_transaction", "pauses after", 4),
    "before it fences its predecessor": ("publisher.hands.senders:fence", "pauses before", 2),
    "before it records what is proven": ("publisher.hands.proving:Proving._record", "pauses before", 1),
}


def pause_and_recover(servers: str, database: str, topic: str, step: tuple[str, str, int]) -> str:
    """Let a relay stand still past its lease, and go on while its successor leads; answer what is wrong then."""
    load = NumberedLoad(database, topic)
    with connect(database) as conn, load.running():
        if step[0].endswith("_record"):
            publish_all(servers, database)  # there is something to prove from now on
        entry = (ENTRY, step[0], step[1], str(step[2]))
        with RelayProcess(database, servers, *OPTIONS, entry=entry) as paused:
            paused.wait_until_it_pauses_itself()
            with RelayProcess(database, servers, *OPTIONS) as successor:
                successor.wait_for("lanes taken")
                wait_published(conn)
                paused.go_on()
                wait_until(
                    lambda: paused.count("standing by") or paused.process.poll() is not None, "it is back"
                )
                wait_published(conn)
                successor.stop()
    publish_all(servers, database)
    return wrong_with(servers, load, topic)


def test_a_relay_that_pauses_past_its_lease_is_fenced_and_harms_no_other_database(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    servers, beside = private_stack.bootstrap_servers, make_private_database()
    places = {name: (make_private_database(), make_private_topic()) for name in PAUSES}
    with (
        connect(beside) as conn,
        RelayProcess(beside, servers) as other,
        ThreadPoolExecutor(BESIDE_A_BYSTANDER) as pool,
    ):
        bystander = Bystander(conn, make_private_topic(), servers)
        running = {
            name: pool.submit(pause_and_recover, servers, *places[name], PAUSES[name]) for name in PAUSES
        }
        while not all(run.done() for run in running.values()):
            bystander.flows()
        other.stop()
        bystander.check()
    assert {name: broken for name, run in running.items() if (broken := run.result())} == {}


def test_kafka_that_stands_still_while_a_transaction_ends_is_waited_for(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    database, topic = make_private_database(), make_private_topic()
    servers, load = private_stack.bootstrap_servers, NumberedLoad(database, topic)
    entry = (ENTRY, f"{WIRES}._end_transaction", "pauses before", "4")
    with RelayProcess(database, servers, *OPTIONS, "--lease", "30", entry=entry) as relay:
        with load.running():
            relay.wait_until_it_pauses_itself()
            private_stack.pause_kafka()
            relay.go_on()
            relay.wait_for("delivery failed")
            private_stack.resume_kafka()
            relay.wait_for("transactions proven")
        with connect(database) as conn:
            wait_published(conn)
        relay.stop()
    assert not wrong_with(servers, load, topic)
