"""Decodes bodies before a listener runs, on the connection and in the transaction that the listener is given.

It is a listener around the application's one, so every way to run one decodes: a delivery, a retry, a batch, an
asynchronous listener. What PostgreSQL, Kafka and the tables of the inbox hold stays encoded.

- An erased message (`ErasedError`) is discarded: the listener does not run, the offset moves on, and no message behind
  it waits, also in an orderly group.
- Anything else that a codec raises is a failure of the message, parked and tried again as one of the listener. If the
  database is away it is an interruption, and no attempt is counted.
- In a batch, erased messages are discarded, and the listener gets the others. If all are erased, it does not run.

If the process dies or the time-out ends between any two lines, nothing is committed: decoding only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from outbox.codecs.codec import Codecs
from outbox.codecs.errors import ErasedError
from outbox.drivers.psycopg_sync import run
from outbox.errors import ConfigurationError
from outbox.inbox.batches import BatchListener, results_of
from outbox.inbox.counts import MessageCounts
from outbox.inbox.handling import Connection, Listener
from outbox.inbox.messages import ConsumedMessage
from outbox.inbox.results import Consumed, ConsumeResult

log = logging.getLogger("outbox.inbox")


class Decoding:
    """The codecs of a consumer, and its count of erased messages."""

    def __init__(self, codecs: Codecs, topics: Sequence[str], counts: MessageCounts) -> None:
        """Check that the consumer reads the topics that have a codec.

        Raises:
            ConfigurationError: it does not read one of them.
        """
        unread = sorted(set(codecs.topics) - set(topics))
        if unread:
            raise ConfigurationError(
                f"codecs: the consumer does not read topic {unread[0]!r}; allowed: its own topics, "
                f"{', '.join(map(repr, sorted(topics)))}"
            )
        self._codecs, self._counts = codecs, counts

    def single(self, listener: Listener) -> Listener:
        """Return a listener that decodes one message."""

        def called(conn: Connection, message: ConsumedMessage) -> Consumed:
            decoded = self.decoded(conn, message)
            return ConsumeResult.DISCARD if decoded is None else listener(conn, decoded)

        return called

    def batch(self, listener: BatchListener) -> BatchListener:
        """Return a listener that decodes a list of messages."""

        def called(conn: Connection, messages: list[ConsumedMessage]) -> Sequence[Consumed]:
            decoded = [self.decoded(conn, message) for message in messages]
            readable = [message for message in decoded if message is not None]
            found = iter(results_of(listener(conn, readable), len(readable)) if readable else ())
            return [ConsumeResult.DISCARD if message is None else next(found) for message in decoded]

        return called

    def decoded(self, conn: Connection, message: ConsumedMessage) -> ConsumedMessage | None:
        """Return a message with the body that was sent, and its value; None: it is erased, which is counted.

        Raises:
            Exception: what the codec raised; the message can be tried again.
        """
        codec = self._codecs.of(message.topic)
        if codec is None or message.body is None:
            return message
        try:
            body = run(conn, codec.decode(message, message.body))
            return replace(message, body=body, value=codec.parse(message, body))
        except ErasedError as error:
            self._counts.erased()
            log.info("%s is discarded: %s", message.message_id, error)
            return None
