"""A partition of one consumer whose threads are driven by the test, so each schedule is exact."""

from __future__ import annotations

import time
from collections.abc import Hashable

import psycopg

from outbox.inbox import DelaySchedule
from outbox.inbox.assignments import Assignments
from outbox.inbox.core.hands import Hands
from outbox.inbox.core.partitions import Limits
from outbox.inbox.delivery_threads import DeliveryThread
from outbox.inbox.failures import Failure
from outbox.inbox.handling import Handling, Listener
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from outbox.inbox.server import CurrentServer, identify_server
from outbox.inbox.sessions import use_read_committed
from outbox.inbox.threads import Runtime
from tests.support.inbox_days import DAY_S
from tests.support.inbox_stage import InboxStage, apply

SOURCE = Source(1, "c/t")
TOPIC = ("t", 0)


class Stage:
    """A partition with messages of one key each, and a thread that the test drives."""

    def __init__(self, inbox: InboxStage) -> None:
        self.inbox = inbox
        inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
        inbox.conn.execute("SELECT outbox.ensure_inbox_partition((now() AT TIME ZONE 'UTC')::date)")
        self.work = Assignments(orderly=True, limits=Limits())
        self.server = CurrentServer()
        self.threads: list[DeliveryThread] = []
        self.conn = psycopg.connect(inbox.dsn)
        use_read_committed(self.conn)
        self.server.accept(identify_server(self.conn))
        self.conn.commit()
        self.assign(0)

    def assign(self, start: int) -> None:
        """Give the partition to the member, from an offset on."""
        with self.work as partitions:
            self.epoch = partitions.open(TOPIC, SOURCE, start, 0, partitions.server)

    def add(self, *numbers: int, failure: Failure | None = None, is_of_new_day: bool = False) -> None:
        """Deliver messages."""
        # Now, and not when the tests began: the day may have changed since.
        born_at = int((time.time() - (DAY_S if is_of_new_day else 0)) * 1000)
        for number in numbers:
            headers = (
                ("outbox-id", f"00000000-0000-4000-8000-{number:012}".encode()),
                ("outbox-born-at", str(born_at).encode()),
            )
            record = RawRecord(
                "t", 0, number, b"k%d" % number, str(number).encode(), headers, 1_700_000_000_123
            )
            assert self.epoch is not None
            delivery = identify(SOURCE, record, orderly=True, epoch=self.epoch, failure=failure)
            if not is_of_new_day:
                self.server.days.add(delivery.born_on)
            with self.work as partitions:
                assert partitions.add(delivery)

    def take(self) -> tuple[Hashable, Delivery]:
        """Take the next message out of a thread's hands."""
        [taken] = self.work.take(0)
        return taken

    def give_back(self, *taken: tuple[Hashable, Delivery]) -> None:
        """Let messages that were taken wait again."""
        with self.work as partitions:
            for each in taken:
                partitions.give_back(*each)

    def thread(self, listener: Listener = apply, hands: Hands | None = None) -> DeliveryThread:
        """Make a thread; the first one begins on the connection of the stage, each other one on its own."""
        first = [] if self.threads else [self.conn]
        how = Handling(1, listener, DelaySchedule.of(["1h"]))
        runtime = Runtime(
            how,
            lambda: first.pop() if first else psycopg.connect(self.inbox.dsn),
            900,
            self.server,
            self.work,
        )
        self.threads.append(DeliveryThread("listener", runtime, hands=hands))
        return self.threads[-1]

    def close(self) -> None:
        """Close all connections."""
        self.conn.close()
        for thread in self.threads:
            thread.session.drop()

    @property
    def offset(self) -> int:
        """What would be stored."""
        with self.work as partitions:
            [stored] = partitions.offsets() or partitions.close([TOPIC])
        return stored.offset

    def running(self) -> int:
        """How many messages are in the hands of threads."""
        with self.work as partitions:
            found = partitions.find(TOPIC)
        assert found is not None
        return found.running
