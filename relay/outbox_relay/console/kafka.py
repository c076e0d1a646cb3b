"""What Kafka has, asked by a thread of its own: a broker that does not reply keeps no page waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outbox_relay.operations.consumer_lag import KafkaOffsets, Lag, lags
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError

ASK_EVERY_S = 10.0


@dataclass(frozen=True)
class KafkaReading:
    """What was read last, and why nothing newer is there."""

    lags: Mapping[tuple[str, str], Lag]
    """By consumer group and Kafka's id of the topic."""
    partitions: Mapping[str, int]
    """By the name of the topic."""
    at: float | None = None
    trouble: str | None = None
    trouble_since: float | None = None


class KafkaView:
    """Keeps the last reading, and reads again when a page asks and it is older than ten seconds.

    Args:
        bootstrap_servers: the brokers to ask first.
        settings: further ones of librdkafka.

    Raises:
        OperatorError: a setting is refused.
    """

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, str]) -> None:
        self._offsets = KafkaOffsets(bootstrap_servers, settings)
        self._topics = KafkaTopics(bootstrap_servers, settings)
        self._reading = KafkaReading({}, {})
        self._asked_at = 0.0
        self._lock = threading.Lock()

    def now(self, positions: Sequence[Row]) -> KafkaReading:
        """Return the last reading, and begin another one if it is time.

        Args:
            positions: where consumer groups are, as the database has it now.
        """
        if time.monotonic() - self._asked_at > ASK_EVERY_S and self._lock.acquire(blocking=False):
            threading.Thread(target=self._read, args=(positions,), name="console kafka", daemon=True).start()
        return self._reading

    def _read(self, positions: Sequence[Row]) -> None:
        try:
            counts = {name: found[0] for name, found in self._topics.counts().items()}
            self._reading = KafkaReading(lags(self._offsets, positions), counts, time.time())
        except OperatorError as error:
            since = self._reading.trouble_since or time.time()
            self._reading = replace(self._reading, trouble=str(error).partition("\n")[0], trouble_since=since)
        finally:
            self._asked_at = time.monotonic()
            self._lock.release()
