"""A topic is paused and resumed while relays publish it, and one of them dies or sleeps past its lease at each step.

Nothing is lost, and each key's first appearances are in order, of the topic that is paused and of one that is not. Some
messages of the paused one fail by themselves, and are repaired in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

from outbox_local.stack.api import Stack
from tests.faults.test_hand_over_steps import has_all
from tests.faults.test_kill_with_parked_keys import ENTRY, KEYS, MUCH, PARKED, SEND, request, state_of
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import PENDING, Connection, connect, numbered
from tests.support.relay_process import ENTRY as RELAY_ENTRY
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.topic_parking import PAUSE, RESUME
from tests.support.waiting import wait_until

RELAY = str(RELAY_ENTRY)
AT_ONCE = 3
OPTIONS = ("--lease", "1", "--page", "100")
STEPS: dict[str, tuple[str, str, int]] = {
    "dies as it parks the topic": ("publisher.core.holds:Holds.claim", "before", 3),
    "dies before it records claims": ("publisher.hands.writes:Writes._claims", "before", 2),
    "dies when it has announced a drain": ("publisher.hands.writes:Writes._announce", "after", 2),
    "dies with a drain on the wire": ("publisher.core.core:Core._add_drain", "after", 3),
    "dies before it records a drain": ("publisher.core.holds:Holds.settle", "before", 3),
    "sleeps as it parks the topic": ("publisher.core.holds:Holds.claim", "pauses after", 3),
    "sleeps before it records claims": ("publisher.hands.writes:Writes._claims", "pauses after", 2),
    "sleeps when it has announced a drain": ("publisher.hands.writes:Writes._announce", "pauses after", 2),
    "sleeps with a drain on the wire": ("publisher.core.core:Core._add_drain", "pauses after", 3),
    "sleeps before it records a drain": ("publisher.core.holds:Holds.settle", "pauses before", 3),
}


class Load:
    """Messages of two topics; one of them is paused and resumed all the time, until the end of a block."""

    def __init__(self, dsn: str, topics: list[str]) -> None:
        self.dsn, self.topics = dsn, topics
        self.sent = 0
        self._end = Event()
        with connect(dsn) as conn:
            for topic in topics:
                conn.execute(
                    "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 2, %s)",
                    [topic, MUCH],
                )

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [Thread(target=self._send), Thread(target=self._flap)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join()

    def _send(self) -> None:
        with connect(self.dsn) as conn:
            while not self._end.wait(0.05):
                for topic in self.topics:
                    values = {"topic": topic, "keys": KEYS, "much": MUCH, "start": self.sent, "count": 20}
                    conn.execute(SEND, values)
                self.sent += 20

    def _flap(self) -> None:
        with connect(self.dsn) as conn:
            while not self._end.wait(0.6):
                conn.execute(PAUSE, [self.topics[0]])
                self._end.wait(0.6)
                conn.execute(RESUME, [self.topics[0]])


def finish(conn: Connection, load: Load, relays: list[RelayProcess]) -> None:
    """Repair what fails, and wait until everything is published."""
    conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000000")

    def is_done() -> bool:
        request(conn)
        # In this order: what is pending may still be parked, and what is neither is published.
        return conn.execute(PENDING).fetchone() is None and conn.execute(PARKED).fetchone() == (0,)

    try:
        wait_until(is_done, "all is published", seconds=180)
    except AssertionError as error:
        outputs = "\n".join(relay.output()[-6_000:] for relay in relays)
        raise AssertionError(f"{error}\n{state_of(conn)}\n{outputs}") from error
    assert load.sent > 100


def disturb(servers: str, dsn: str, topics: list[str], strike: tuple[str, str, int]) -> str:
    """Strike one of two relays at this step; return what is wrong in the end."""
    load = Load(dsn, topics)
    with ExitStack() as stack:
        conn = stack.enter_context(connect(dsn))

        def start(*entry: str) -> RelayProcess:
            return stack.enter_context(RelayProcess(dsn, servers, *OPTIONS, entry=entry)).wait_until_joined()

        with load.running():
            struck = start(ENTRY, *map(str, strike))
            other = start(RELAY)
            if strike[1].startswith("pauses"):
                struck.wait_until_it_pauses_itself(seconds=90)
                wait_until(lambda: has_all(conn, other), "the other one has all lanes")
                seen = load.sent
                wait_until(lambda: load.sent > seen + 200, "it publishes for a while")
                struck.go_on()
            else:
                struck.wait_until_it_kills_itself(90)
            seen = load.sent
            wait_until(lambda: load.sent > seen + 200, "it publishes for a while")
        finish(conn, load, [struck, other])
        for relay in (struck, other):
            assert "Traceback" not in relay.output(), relay.output()
            if relay.is_running:
                relay.stop()
    expected = numbered(load.sent, keys=KEYS)
    return "\n".join(filter(None, (compare(read_topic(servers, topic), expected).broken for topic in topics)))


def test_a_relay_may_die_or_sleep_at_any_step_while_a_topic_is_paused_and_resumed(
    private_stack: Stack, make_private_database: MakeDatabase, make_private_topic: MakeTopic
) -> None:
    """Several at once, each with its own database."""
    places = {
        name: (make_private_database(), [make_private_topic(partitions=2) for _ in range(2)])
        for name in STEPS
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(disturb, private_stack.bootstrap_servers, *places[name], step)
            for name, step in STEPS.items()
        }
    assert {name: broken for name, each in running.items() if (broken := each.result())} == {}
