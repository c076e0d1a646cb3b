"""Kafka's producers and their settings: idempotent, acks=all, never timing a message out.

A session has one producer for most topics, and others for topics that take small batches only. Kafka's size limit of a
topic is one of record batches. librdkafka fills batches up to one size for all topics, so that small messages in one
batch would be refused where each of them fits.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import ROOT, Log
from outbox_relay.text.masking import mask_text

log, topics_log = Log("kafka"), Log("topics")
librdkafka = logging.getLogger(f"{ROOT}.librdkafka")
# It warns at every start that the guarantee is experimental. We know: docs/adr/0010 states what we do about it.
librdkafka.addFilter(lambda record: "enable.gapless.guarantee is experimental" not in record.getMessage())

PROMISED: dict[str, tuple[frozenset[str], str]] = {
    "acks": (frozenset({"all", "-1"}), "a message acknowledged by one broker only can be lost with it"),
    "request.required.acks": (
        frozenset({"all", "-1"}),
        "a message acknowledged by one broker only can be lost with it",
    ),
    "enable.idempotence": (frozenset({"true", "1"}), "retries would reorder and double messages"),
    "enable.gapless.guarantee": (
        frozenset({"true", "1"}),
        "a message would be delivered after an earlier one failed",
    ),
    "message.timeout.ms": (frozenset({"0"}), "a message that timed out would be skipped"),
    "delivery.timeout.ms": (frozenset({"0"}), "a message that timed out would be skipped"),
    "transactional.id": (frozenset(), "transactions belong to the relay's exactly-once mode"),
    "partitioner": (frozenset(), "partitions are computed by the outbox"),
    "log_level": (
        frozenset({"6", "7"}),
        "lost connections would not be noticed, after which messages are in doubt",
    ),
    "log.connection.close": (
        frozenset({"true", "1"}),
        "lost connections would not be noticed, after which messages are in doubt",
    ),
}
"""Settings that keep a promise: the values they may have, and what breaks with any other."""

BATCH_BYTES = 1_000_000
QUEUE_KBYTES = 65_536

SPARE = 512
"""Bytes between a batch and its topic's limit."""
OTHERS_WAIT_S = 0.001
LIST_TIMEOUT_S = 0.1
"""How long a broker may take to list the partitions of one topic; the publishing loop waits for it."""


Settings = Mapping[str, Any]
OnText = Callable[[str], None]

# A connection that was made, and failed. librdkafka names the state in its log line, or in its error.
# The states of transactions, which it names, too, have small letters.
_LOST = re.compile(r"in state (?!INIT|DOWN|TRY_CONNECT|CONNECT\b)[A-Z][A-Z_]")
_SILENT_S = 31.0
"""For 30 s librdkafka does not report the same failure of a broker again."""


class KafkaSettingError(ValueError):
    """A librdkafka setting that is unknown or would break a promise."""


def producer_settings(bootstrap_servers: str, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return librdkafka's settings for the relay, with the user's own added.

    Raises:
        KafkaSettingError: a setting of the user's would break a promise; names it, why, and what is allowed.
    """
    for name, value in (extra or {}).items():
        allowed, why = PROMISED.get(name, (None, ""))
        if allowed is not None and value.lower() not in allowed:
            options = f"allowed: {', '.join(sorted(allowed))}" if allowed else "it cannot be set"
            raise KafkaSettingError(f"--kafka-config {name}={value} would break a promise: {why}; {options}")
    return {
        "client.id": "outbox-relay",
        "linger.ms": 0,
        "batch.size": BATCH_BYTES,
        "batch.num.messages": 10_000,
        # The size limit is each topic's own, and checked before a message is produced.
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "topic.metadata.propagation.max.ms": 10_000,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        **(extra or {}),
        "bootstrap.servers": bootstrap_servers,
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "message.timeout.ms": 0,
    }


def new_producer(settings: Mapping[str, Any], on_text: Callable[[str], None] | None = None) -> Producer:
    """Make a producer whose own log lines and connection errors go to our log, and their texts to `on_text`.

    Raises:
        KafkaSettingError: librdkafka does not know a setting or its value.
    """
    own: dict[str, Any] = {"error_cb": _log_error, "logger": librdkafka}
    if on_text is not None:
        own = {"error_cb": partial(_pass_on, on_text), "logger": _Lines(on_text)}
    try:
        return Producer({**settings, **own})
    except Exception as error:
        # confluent_kafka raises KafkaException for what librdkafka refuses, and TypeError for odd types.
        raise KafkaSettingError(f"--kafka-config: {readable(error)}") from error


def readable(error: BaseException | KafkaError) -> str:
    """Give the text of an error of Kafka's client, which shows itself as `KafkaError{code=…}`; passwords masked."""
    if isinstance(error, BaseException):
        inner = error.args[0] if error.args else None
        if not isinstance(inner, KafkaError):
            return mask_text(str(error))
        error = inner
    return mask_text(error.str())


def new_admin(settings: Mapping[str, Any]) -> AdminClient:
    """Make an admin client with the same connection settings (security and addresses)."""
    own: dict[str, Any] = {"logger": librdkafka}
    return AdminClient({**_connection(settings), **own})


def new_log_reader(settings: Mapping[str, Any], *, committed: bool, group: str = "outbox-relay") -> Consumer:
    """Make a consumer, with the same connection settings, that reads assigned partitions from offset to offset.

    Args:
        settings: of the producers.
        committed: read up to the first open transaction, and nothing that was aborted, of a group its stable offsets.
            Otherwise all there is.
        group: whose offsets it reads, without joining it.
    """
    own: dict[str, Any] = {"logger": librdkafka}
    return Consumer(
        {
            **_connection(settings),
            "group.id": group,  # the client needs a name; nobody joins, and no offset is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": QUEUE_KBYTES,
            **own,
        }
    )


def _connection(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "client.", "socket.", "reconnect."))
    }


class _Lines:
    """Takes librdkafka's log lines for our log, and passes on their texts."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text

    def log(self, level: int, text: str, *values: object) -> None:
        """Take a line, as logging.Logger does."""
        self._on_text(text % values if values else text)
        librdkafka.log(level, text, *values)


def _pass_on(on_text: Callable[[str], None], error: KafkaError) -> None:
    on_text(error.str())
    _log_error(error)


def _log_error(error: KafkaError) -> None:
    if error.fatal():
        log.error("fatal producer error", code=error.name(), text=error.str())
    else:
        log.warning("kafka", code=error.name(), text=error.str())


def batch_bytes(limit: int) -> int:
    """Size of batches for a topic with this limit; powers of two, so that many limits need few producers."""
    if limit >= BATCH_BYTES + SPARE:
        return BATCH_BYTES
    return 1 << (max(limit - SPARE, 1).bit_length() - 1)


def lists(producer: Producer, topic: Topic) -> bool:
    """Return whether a producer knows all partitions of a topic, after reading them from a broker."""
    try:
        known = producer.list_topics(topic.name, timeout=LIST_TIMEOUT_S).topics[topic.name]
    except KafkaException as error:
        topics_log.info("partitions of a topic not read yet", topic=topic.name, error=readable(error))
        return False
    return len(known.partitions) >= topic.partitions


class Disturbance:
    """Until when what was handed over before may have been sent twice, because a connection was lost.

    It is apart from the producers, which call it back: they would keep each other, and their threads, alive.
    """

    def __init__(self) -> None:
        self.until = -math.inf
        """Monotonic seconds."""

    def note(self, text: str) -> None:
        """Take a line or an error of librdkafka's."""
        # Called by poll(), in the order of the deliveries: before the outcome of anything that was sent again.
        if _LOST.search(text):
            self.until = time.monotonic() + _SILENT_S


class Producers:
    """Opens producers as topics need them, and serves them together.

    A topic keeps its producer to the end: two would not keep its order. If its limit is lowered meanwhile the
    broker refuses a batch, and the session starts over with new producers.
    """

    def __init__(
        self, settings: Settings, open_producer: Callable[[Settings, OnText], Any] = new_producer
    ) -> None:
        self._settings = settings
        self._open = open_producer
        self._disturbance = Disturbance()
        self.main: Producer = open_producer(settings, self._disturbance.note)
        self._by_size: dict[int, Producer] = {BATCH_BYTES: self.main}
        self._by_topic: dict[str, Producer] = {}
        self.ended: KafkaError | None = None
        """Why a producer takes nothing more, once one does not."""

    def of(self, topic: str, limit: int) -> Producer:
        """Return the producer of a topic whose batches may have `limit` bytes."""
        producer = self._by_topic.get(topic)
        if producer is None:
            size = batch_bytes(limit)
            producer = self._by_size.get(size)
            if producer is None:
                producer = self._by_size[size] = self._open(
                    {**self._settings, "batch.size": size}, self._disturbance.note
                )
            self._by_topic[topic] = producer
        return producer

    def lists(self, topic: Topic) -> bool:
        """Return whether the producer of a topic knows all its partitions, after reading them from a broker."""
        return lists(self.of(topic.name, topic.max_message_bytes), topic)

    def __len__(self) -> int:
        """Messages that are not delivered yet."""
        return sum(map(len, self._by_size.values()))

    def poll(self, seconds: float) -> None:
        """Call back about deliveries, waiting up to `seconds` for the first; a fatal error is kept in `ended`."""
        if len(self._by_size) > 1:
            seconds = min(seconds, OTHERS_WAIT_S)
            for producer in self._by_size.values():
                if producer is not self.main:
                    self._serve(producer, 0)
        self._serve(self.main, seconds)

    def _serve(self, producer: Producer, seconds: float) -> None:
        try:
            producer.poll(seconds)
        except KafkaException as error:
            # confluent_kafka raises what is fatal here, in front of the deliveries that tell more about it.
            self.ended = error.args[0]

    @property
    def disturbed_until(self) -> float:
        """What was handed over before (monotonic seconds) may have been sent twice, because a connection was lost."""
        return self._disturbance.until

    def close(self) -> None:
        """Drop what is not delivered yet, so that the producers can be destroyed without waiting."""
        for producer in self._by_size.values():
            producer.purge()
            self._serve(producer, 0)
