"""A relay that dies around parked keys and their drains loses nothing, and publishes no key out of order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from outbox.partitioning.lanes import LANES
from outbox_local.stack.api import Stack
from tests.support.background_load import BackgroundLoad
from tests.support.bare_reader import narrow_partitions
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

ENTRY = str(Path(__file__).parents[1] / "support/dying_relay.py")
AT_ONCE = 4
OPTIONS = ("--lease", "1", "--page", "100")
STEPS = {
    "reading the parked keys": ("publisher.hands.hold_rows:HoldRows._load", 1),
    "making a claim": ("publisher.core.holds:Holds.claim", 3),
    "recording claims": ("publisher.hands.writes:Writes._claims", 3),
    "inside the recording transaction": ("publisher.hands.writes:Writes._require_a_row", 8),
    "announcing a drain": ("publisher.hands.writes:Writes._announce", 3),
    "reading what is held": ("publisher.hands.reads:Reads._drain", 4),
    "producing a drain": ("publisher.core.core:Core._add_drain", 4),
    "recording a drain": ("publisher.core.holds:Holds.settle", 3),
}
KEYS = 50
MUCH = 10_000
SEND = """
    INSERT INTO outbox.message (topic, key, body, headers, lane)
    SELECT %(topic)s, convert_to('k' || i %% %(keys)s, 'UTF8'),
           convert_to(pg_catalog.format('k%%s:%%s', i %% %(keys)s, i), 'UTF8'),
           CASE WHEN i %% 37 = 5 THEN pg_catalog.jsonb_build_object('much', repeat('x', %(much)s)) END,
           outbox.lane_of(%(topic)s, NULL, convert_to('k' || i %% %(keys)s, 'UTF8'), 0)
    FROM generate_series(%(start)s::bigint, %(start)s::bigint + %(count)s - 1) i
"""


class Load(BackgroundLoad):
    """What is committed while relays die: every 37th message is one that its topic does not take at first."""

    def __init__(self, dsn: str, topic: str) -> None:
        self._dsn, self._topic = dsn, topic
        super().__init__()
        self.sent = 0
        with connect(dsn) as conn:
            narrow_partitions(conn, width=1_000, count=10)
            conn.execute(
                "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 2, %s)",
                [topic, MUCH],
            )
            self._send(conn, 400)

    def _send(self, conn: Connection, count: int) -> None:
        values = {"topic": self._topic, "keys": KEYS, "much": MUCH, "start": self.sent, "count": count}
        conn.execute(SEND, values)
        self.sent += count

    def repair(self) -> None:
        with connect(self._dsn) as conn:
            conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000000 WHERE name = %s", [self._topic])

    def _write(self) -> None:
        with connect(self._dsn) as conn:
            while not self._end.wait(0.1):
                self._send(conn, 20)
                request(conn)


def request(conn: Connection) -> None:
    conn.execute(
        "UPDATE outbox.parked_key SET requested_at = clock_timestamp() "
        "WHERE draining_at IS NULL AND requested_at IS NULL"
    )


PARKED = "SELECT (SELECT count(*) FROM outbox.waiting) + (SELECT count(*) FROM outbox.parked_key)"
STATE = {
    "lanes": "SELECT * FROM outbox.lane ORDER BY lane",
    "leases": "SELECT * FROM outbox.lease",
    "parked keys": "SELECT * FROM outbox.parked_key ORDER BY number LIMIT 20",
    "waiting": "SELECT * FROM outbox.waiting ORDER BY id LIMIT 20",
    "not published": """
        SELECT m.id, m.position, m.xid, m.lane, convert_from(m.body, 'UTF8') FROM outbox.message m
        JOIN outbox.message_status s USING (id)
        WHERE s.status = 'COMMITTED' AND s.published_at IS NULL ORDER BY m.position LIMIT 20
    """,
    "last publications": """
        SELECT epoch, batch, lo, hi, lanes, base, snapshot, after, pg_catalog.cardinality(positions), published_at
        FROM outbox.publication ORDER BY epoch DESC, batch DESC LIMIT 10
    """,
    "now": "SELECT clock_timestamp(), pg_current_snapshot(), (SELECT last_value FROM outbox.position)",
}


def state_of(conn: Connection) -> str:
    """What a failure needs to be understood."""
    parts = []
    for name, query in STATE.items():
        parts.append(f"--- {name}")
        parts += [str(row) for row in conn.execute(query)]
    return "\n".join(parts)


def die_and_recover(servers: str, database: str, topic: str, step: str, number: int) -> str:
    """Let a relay die before a step and its successor after it; return what is wrong when a third has ended."""
    load = Load(database, topic)
    with load.running():
        for when in ("before", "after"):
            entry = (ENTRY, step, when, str(number))
            with RelayProcess(database, servers, *OPTIONS, entry=entry) as relay:
                relay.wait_until_it_kills_itself()
    load.repair()
    with connect(database) as conn, RelayProcess(database, servers, *OPTIONS) as relay:

        def is_drained() -> bool:
            request(conn)
            return conn.execute(PARKED).fetchone() == (0,)

        try:
            # It knows by then which keys are parked. Before, there may be none yet, and nothing that is published.
            relay.wait_for("lanes taken", lanes=list(range(LANES)))
            wait_until(is_drained, "all keys are drained")
            wait_published(conn)
        except AssertionError as error:
            raise AssertionError(f"{step}: {error}\n{state_of(conn)}\n{relay.output()}") from error
        relay.stop()
    return compare(read_topic(servers, topic), numbered(load.sent, keys=KEYS)).broken


def test_a_relay_may_die_before_and_after_any_step_of_parking(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """All steps one after the other, some at a time, each with its own database."""
    places = {name: (make_private_database(), make_private_topic(partitions=2)) for name in STEPS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(die_and_recover, private_stack.bootstrap_servers, *places[name], *STEPS[name])
            for name in STEPS
        }
    assert {name: broken for name, run in running.items() if (broken := run.result())} == {}
