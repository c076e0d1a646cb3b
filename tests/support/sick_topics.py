"""Operators under chaos: three topics with messages that cannot be published, and commands that mend or give them up.

One topic is well. One is missing in Kafka, is made, deleted and made again. One is paused and resumed. All take small
messages only until an operator raises their limit, and lowers it again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from threading import Event, Lock

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.concurrent_writers import POISON_BYTES
from tests.support.kafka_records import Record, by_key_and_version, read_topic
from tests.support.outbox_command import Ran, outbox
from tests.support.plain_inserts import connect
from tests.support.topics import LIMIT, Topics
from tests.support.waiting import wait_until

PARTITIONS = 4
ENOUGH = 1_000_000
INCARNATION = 10**9
"""More than the offsets of one incarnation of a topic; those of the next one come behind."""
ALL = {"skip", "retry", "raise", "lower", "pause", "resume", "create", "delete"}
"""What operators do in each run."""
PLAINLY, IN_DOUBT = "given up", "given up in doubt"
REGISTER = "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, %s, %s)"
IS_PAUSED = "SELECT paused_at IS NOT NULL FROM outbox.topic WHERE name = %s"
GIVEN_UP = """
    SELECT convert_from(body, 'UTF8') FROM outbox.message WHERE topic = %s AND state = 'SKIPPED' AND remark = %s
"""
FAILING = """
    SELECT m.id::text, m.topic FROM outbox.waiting w JOIN outbox.message m USING (id)
    WHERE w.reason = 'failed' AND m.topic = ANY (%s)
"""
WAITING = """
    SELECT count(*) FROM outbox.waiting w JOIN outbox.message m USING (id) WHERE m.topic = ANY (%s)
"""
UNPUBLISHED = """
    SELECT count(*) FROM (
        SELECT FROM outbox.message_status WHERE topic = ANY (%s) AND status IN ('COMMITTED', 'DEAD') LIMIT 1
    ) unpublished
"""


class Operators:
    """Two of them act between `start` and `stop`, each one command after the other.

    One is concerned with messages that cannot be published, one with topics.

    A command that fails, because PostgreSQL or Kafka is away or a lane's owner has died, is not repeated: what it
    should have done is done, or not, by a later one. A command that ends with a traceback fails the test.
    """

    def __init__(self, servers: str, dsn: str, well: str, seed: int) -> None:
        self._servers, self._dsn, self._chance = servers, dsn, random.Random(seed)
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.well, self.lost = well, Topics.new_name()
        self.paused = Topics(servers).make(PARTITIONS)
        self.topics = (self.well, self.lost, self.paused)
        self.kafka_is_needed = Lock()
        """Held while a topic is read and deleted: a broker that is killed then would leave open what was read."""
        self.done: Counter[str] = Counter()
        self._before: list[Record] = []
        self._incarnation = 0
        self._end = Event()
        self._people = ThreadPoolExecutor(2, thread_name_prefix="operator")
        self._threads: list[Future[None]] = []
        # Processes of their own, because commands run by click's runner change the environment of their process.
        self._commands = ProcessPoolExecutor(2, get_context("spawn"))
        for _ in range(2):
            self._commands.submit(outbox, "--version")  # they start while relays do
        with connect(dsn) as conn:
            for name in self.topics:
                conn.execute(REGISTER, [name, PARTITIONS, POISON_BYTES])

    def start(self) -> None:
        self._threads += [
            self._people.submit(self._act, [self.give_up, self.retry, self.repair, self.limit]),
            self._people.submit(self._act, [self.turn_paused, self.turn_lost]),
        ]

    @property
    def have_done_all(self) -> bool:
        """Whether each command has succeeded at least once; raises what ended one of the threads."""
        for one in self._threads:
            if one.done():
                one.result()
        return self.done.keys() >= ALL

    def stop(self) -> None:
        """End between two commands."""
        self._end.set()
        for one in self._threads:
            one.result()

    def close(self) -> None:
        self._end.set()
        self._people.shutdown()
        self._commands.shutdown()

    def _act(self, acts: list[Callable[[], None]]) -> None:
        left: list[Callable[[], None]] = []
        while not self._end.wait(self._chance.uniform(0, 0.3)):
            left = left or self._chance.sample(acts, len(acts))
            try:
                left.pop()()
            except (psycopg.OperationalError, KafkaException):
                self.done["no server"] += 1

    def run(self, name: str, *arguments: str) -> Ran:
        """Run a command and count it, by this name, if it succeeded."""
        given = {"OUTBOX_DSN": self._dsn, "OUTBOX_BOOTSTRAP_SERVERS": self._servers}
        ran: Ran = self._commands.submit(outbox, *arguments, **given).result()
        self.done[name if ran.code == 0 else f"{name} failed"] += 1
        return ran

    def failing(self, *topics: str) -> list[tuple[str, str]]:
        """List messages of these topics that cannot be published, with their topics."""
        with connect(self._dsn) as conn:
            return conn.execute(FAILING, [list(topics)]).fetchall()

    def _some(self) -> list[str]:
        found = self.failing(*self.topics)
        return [id_ for id_, _ in self._chance.sample(found, min(3, len(found)))]

    def give_up(self) -> None:
        """Skip some messages; plainly those that are certainly not in Kafka."""
        for one in self._some():
            skip = ("holds", "skip", one)
            ran = self.run("skip", *skip, "--reason", PLAINLY)
            if "--may-be-published" in ran.err:
                self.run("skip in doubt", *skip, "--may-be-published", "--reason", IN_DOUBT)

    def retry(self) -> None:
        """Retry some, mended or not: a key whose message fails again stays parked."""
        for one in self._some():
            self.run("retry", "holds", "release", one, "--reason", "try it")

    def repair(self) -> None:
        """Let topics take the large messages, and retry some by name."""
        for topic in {topic for _, topic in self.failing(*self.topics)}:
            self.allow(topic)
        self.retry()

    def allow(self, topic: str) -> None:
        """Let a topic take large messages; its parked keys are tried again then."""
        if self.is_in_kafka(topic):
            self._raise_in_kafka(topic)
            self.run("raise", "topic", "alter", topic, "--max-message-bytes", str(ENOUGH))

    def limit(self) -> None:
        """Let a topic not take the large messages any more."""
        topic = self._chance.choice(self.topics)
        self.run("lower", "topic", "alter", topic, "--max-message-bytes", str(POISON_BYTES))

    def turn_paused(self) -> None:
        """Pause the one topic, or resume it."""
        if self.is_paused(self.paused):
            self.run("resume", "topic", "resume", self.paused)
        else:
            self._pause(self.paused)

    def turn_lost(self) -> None:
        """Delete the other topic, or make it again.

        It is paused while it is read and deleted: what Kafka has acknowledged is lost with the topic, so what the test
        compares must be read between the last publication and the deletion.
        """
        with self.kafka_is_needed:
            if not self.is_in_kafka(self.lost):
                self.run("create", "topic", "create", self.lost)
            elif self._pause(self.lost).code == 0:
                self._before += self._read_lost()
                self._admin.delete_topics([self.lost])[self.lost].result(LIMIT)
                wait_until(lambda: not self.is_in_kafka(self.lost), "the topic is deleted")
                self._incarnation += 1
                self.done["delete"] += 1
            self.run("resume", "topic", "resume", self.lost)

    def _pause(self, topic: str) -> Ran:
        return self.run("pause", "topic", "pause", topic, "--reason", "a test", "--timeout", "5")

    def is_paused(self, topic: str) -> bool:
        with connect(self._dsn) as conn:
            return conn.execute(IS_PAUSED, [topic]).fetchone() == (True,)

    def is_in_kafka(self, topic: str) -> bool:
        return topic in self._admin.list_topics(timeout=LIMIT).topics

    def _raise_in_kafka(self, topic: str) -> None:
        entry = ConfigEntry("max.message.bytes", str(ENOUGH), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(LIMIT)

    def sicken(self) -> None:
        """Leave the one topic deleted and the other one paused."""

        def is_lost() -> bool:
            if self.is_in_kafka(self.lost):
                self.turn_lost()
            return not self.is_in_kafka(self.lost)

        def is_paused() -> bool:
            return self.is_paused(self.paused) or self._pause(self.paused).code == 0

        wait_until(is_lost, "the one topic is deleted")
        wait_until(is_paused, "the other topic is paused")

    def mend(self, topics: Iterable[str]) -> None:
        """Do what lets everything of these topics be published; called until it is."""
        for topic in topics:
            if topic == self.lost and not self.is_in_kafka(topic):
                self.turn_lost()
            if topic != self.well and self.is_paused(topic):
                self.run("resume", "topic", "resume", topic)
            if self.failing(topic):
                self.allow(topic)  # and ask for a drain, as often as one has failed

    def waiting(self, *topics: str) -> int:
        """Count the messages of these topics that wait, because they fail or something before them does."""
        with connect(self._dsn) as conn:
            (count,) = conn.execute(WAITING, [list(topics)]).fetchone() or (-1,)
        return int(count)

    def are_published(self, *topics: str) -> bool:
        """Return whether all that is committed of these topics is published, but what was given up."""
        if self.waiting(*topics):
            return False  # the next query reads all messages, so it is not asked in vain
        with connect(self._dsn) as conn:
            return conn.execute(UNPUBLISHED, [list(topics)]).fetchone() == (0,)

    def _read_lost(self) -> list[Record]:
        base = self._incarnation * INCARNATION
        found = read_topic(self._servers, self.lost)
        return [record._replace(offset=base + record.offset) for record in found]

    def records(self, topic: str) -> list[Record]:
        """Read a topic; of the one that was deleted, what each of its incarnations had."""
        return self._before + self._read_lost() if topic == self.lost else read_topic(self._servers, topic)

    def wanted(
        self, topic: str, committed: set[tuple[str, int]], records: Iterable[Record]
    ) -> set[tuple[str, int]]:
        """Return which of the committed messages Kafka must have, and no others.

        What was given up plainly must not be there; what was given up in doubt may be.
        """
        with connect(self._dsn) as conn:
            plainly, doubted = (
                {_version(body) for (body,) in conn.execute(GIVEN_UP, [topic, reason])}
                for reason in (PLAINLY, IN_DOUBT)
            )
        there = {by_key_and_version(record) for record in records}
        return committed - plainly - (doubted - there)


def _version(body: str) -> tuple[str, int]:
    key, _, version = body.rpartition(":")
    return key, int(version)
