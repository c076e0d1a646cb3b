"""A flood of one topic, and a message of another topic of the same group: partitions take turns.

There was one queue of ready keys for all partitions. A message came behind all that waited in memory when it arrived:
1,000 messages of each partition of the flood.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.inbox_stage import Connection, InboxStage
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

FLOOD, PARTITIONS, WORKERS, SECONDS = 1200, 4, 2, 0.1
"""They take 60 s: FLOOD * SECONDS / WORKERS."""
MOST_LATE = 20.0
"""A round takes 0.2 s: PARTITIONS * SECONDS / WORKERS."""


class Paced:
    """A listener that takes a while for each message, until the test lets it hurry."""

    def __init__(self, quiet: str) -> None:
        self.quiet, self.hurries = quiet, threading.Event()
        self.seen: list[float] = []

    def __call__(self, _: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.topic == self.quiet:
            self.seen.append(monotonic())
        else:
            self.hurries.wait(SECONDS)
        return ConsumeResult.SUCCESS

    def batch(self, conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        """The same for a list."""
        return [self(conn, message) for message in messages]


@pytest.mark.parametrize(
    "options", [{}, {"orderly": True}, {"orderly": True, "batch": 4}], ids=["independent", "orderly", "batch"]
)
def test_a_flood_of_one_topic_holds_up_no_other_one(
    inbox: InboxStage, make_topic: MakeTopic, options: dict[str, Any]
) -> None:
    flood, quiet = make_topic(PARTITIONS), make_topic(1)
    paced = Paced(quiet)
    listener = paced.batch if "batch" in options else paced
    with inbox.consumer({flood: "*", quiet: "*"}, listener, workers=WORKERS, **options) as consumer:
        try:
            wait_until(lambda: len(consumer.vitals().partitions) == PARTITIONS + 1, "all partitions are read")
            inbox.produce_numbered(flood, FLOOD, keys=FLOOD)
            wait_until(lambda: in_memory(consumer) > FLOOD * 0.7, "most of the flood is in memory")
            sent = []
            for number in range(3):
                inbox.produce(quiet, "q", str(number))
                inbox.flush()
                sent.append(monotonic())
                wait_until(lambda: len(paced.seen) == len(sent), "the quiet one is applied", seconds=40)
            assert in_memory(consumer) > 0, "the flood has not ended before"
        finally:
            paced.hurries.set()
        wait_until(lambda: inbox.count("outbox.inbox") == FLOOD + 3, "all are applied")
    assert max(seen - at for seen, at in zip(paced.seen, sent, strict=True)) < MOST_LATE


def in_memory(consumer: Any) -> int:
    return sum(part.waiting for part in consumer.vitals().partitions)
