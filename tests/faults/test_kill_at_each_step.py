"""A relay that dies before or after any of its steps leaves nothing lost, nothing invented, nothing out of order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from outbox_local.stack.api import Stack
from tests.support.background_load import NumberedLoad
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, decide, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
AT_ONCE = 6
OPTIONS = ("--lease", "1", "--page", "100")

STEPS = {
    "joining": ("publisher.lease:join", 1),
    "reading who leads": ("publisher.leading:Leadership.read", 3),
    "taking the lanes": ("publisher.lease:Lease.take", 1),
    "listing a backlog": ("publisher.finder:Finder.backlog", 1),
    "reading a page of a backlog": ("publisher.finder:Finder.page", 2),
    "polling": ("publisher.finder:Finder.poll", 3),
    "the barrier and recording": ("publisher.hands.writes:Writes.commit", 4),
    "inside the recording transaction": ("publisher.hands.writes:Writes._require_a_row", 5),
    "sending a record along with a poll": ("publisher.hands.writes:Writes.rider", 2),
    "the round trip of a poll and a record": ("publisher.prepared:PreparedStatements.run_with", 2),
    "noting a record that travelled": ("publisher.hands.writes:Writes.land", 2),
    "producing a page": ("publisher.hands.wires:Wires._hand_over", 3),
    "serving deliveries": ("publisher.hands.wires:Wires.serve", 4),
    "taking what is acknowledged": ("publisher.hands.wires:Wires.take_acknowledged", 2),
    "renewing the lease": ("publisher.lease:Lease.renew", 1),
    "leaving partitions out": ("publisher.partitions:LivePartitions.retire", 1),
    "releasing delayed messages": ("publisher.upkeep:Delayed.release", 1),
}


class Load(NumberedLoad):
    """What is committed while relays die: small transactions, half messages, delayed messages."""

    def _write_others(self, conn: Connection, number: int) -> None:
        half = insert(conn, self._topic, "h", f"h:{number}", state="UNKNOWN", producer_group="faults")
        # A key of its own for each: delayed messages leave the order by declared rule.
        due = conn.execute("SELECT clock_timestamp() + interval '200 ms'").fetchone()
        assert due is not None
        insert(conn, self._topic, f"d{number}", f"d{number}:1", deliver_at=due[0])
        assert decide(conn, half, "COMMITTED") == 1
        self.committed += [("h", number), (f"d{number}", 1)]


def die_and_recover(servers: str, database: str, topic: str, step: str, number: int) -> str:
    """Let one relay die before a step and its successor after it; answer what is wrong when a third is done."""
    load = Load(database, topic)
    with load.running():
        for when in ("before", "after"):
            entry = (ENTRY, step, when, str(number))
            with RelayProcess(database, servers, *OPTIONS, entry=entry) as relay:
                relay.wait_until_it_kills_itself()
    with connect(database) as conn, RelayProcess(database, servers, *OPTIONS) as relay:
        wait_published(conn)
        waiting = "SELECT count(*) FROM outbox.waiting"
        wait_until(lambda: conn.execute(waiting).fetchone() == (0,), "delayed messages are released")
        wait_published(conn)
        relay.stop()
    return compare(read_topic(servers, topic), load.committed).broken


def test_a_relay_may_die_before_and_after_any_step(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """All steps side by side, each with its own database: a relay that starts or waits for a second is idle."""
    places = {name: (make_private_database(), make_private_topic()) for name in STEPS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(die_and_recover, private_stack.bootstrap_servers, *places[name], *STEPS[name])
            for name in STEPS
        }
    assert {name: broken for name, run in running.items() if (broken := run.result())} == {}
