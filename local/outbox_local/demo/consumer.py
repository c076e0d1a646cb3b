"""A stock consumer that writes down each record whole: key, value and headers. It knows nothing of the outbox."""

from __future__ import annotations

import sys

from confluent_kafka import Message

from outbox_local.demo import journal
from outbox_local.demo.journal import Record
from outbox_relay.proving import reader


def _line_of(message: Message, received: float) -> str:
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None:
        raise RuntimeError("a record without partition and offset")
    pairs = reader.header_pairs(message)
    key, value = _text(message.key()), _text(message.value())
    headers = tuple((name, _text(text)) for name, text in pairs)
    return journal.line(Record(partition, offset, message.timestamp()[1], received, key, value, headers))


def _text(value: bytes | str | None) -> str | None:
    """Bytes as text that turns into the same bytes again, even if they are no UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def main(argument: str) -> None:
    """Run as `python -m outbox_local.demo.consumer READING`."""
    reader.main(argument, _line_of)


if __name__ == "__main__":
    main(sys.argv[1])
