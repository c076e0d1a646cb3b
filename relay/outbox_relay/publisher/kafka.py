"""The Kafka producer and its settings: idempotent, acks=all, never timing a message out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from outbox_relay.text.logs import ROOT, Log
from outbox_relay.text.masking import mask_text

log = Log("kafka")
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
