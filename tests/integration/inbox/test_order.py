"""Orderly listeners: messages of one key one after the other, many keys at once, also while some of them fail."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

COUNT, KEYS = 2000, 50


class Overlaps:
    """A listener that notes when two messages of a key run at once; every tenth message fails at its first attempt."""

    def __init__(self) -> None:
        self._lock, self._pause = threading.Lock(), threading.Event()
        self._running: Counter[bytes | None] = Counter()
        self.overlapped: list[bytes | None] = []
        self.at_once = 0

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        """Write the row of the message."""
        with self._lock:
            self._running[message.key] += 1
            if self._running[message.key] > 1:
                self.overlapped.append(message.key)
            self.at_once = max(self.at_once, self._running.total())
        try:
            self._pause.wait(random.uniform(0, 0.003))
            assert message.body is not None
            if int(message.body) % 10 == 3 and not message.reconsume_times:
                return ConsumeResult.RECONSUME_LATER
            return apply(conn, message)
        finally:
            with self._lock:
                self._running[message.key] -= 1


@pytest.mark.feature("S-100", "S-103")
def test_one_message_of_a_key_runs_at_a_time_while_a_tenth_fails(inbox: InboxStage, topic: str) -> None:
    listener = Overlaps()
    inbox.produce_numbered(topic, COUNT, keys=KEYS)
    with inbox.consumer(topic, listener, orderly=True, workers=8, retry_workers=4):
        inbox.wait_applied(COUNT)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 0, "no retry is left")
    assert inbox.by_key() == {f"k{key}": [*range(key, COUNT, KEYS)] for key in range(KEYS)}
    assert listener.overlapped == []
    assert listener.at_once > 4, "many keys ran at once"
