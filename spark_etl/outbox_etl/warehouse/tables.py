"""The tables of the warehouse: their columns, each with what it means, their partitions and their order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, Spark's name of its type, and what it means."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the warehouse."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    day: str
    """The column by whose day the table is partitioned: a timestamp, or a date."""
    order: tuple[str, ...]
    """What each file is sorted by, so that its smallest and largest values bound what it can hold."""

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]

    @property
    def schema(self) -> str:
        """The columns as Spark's DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    @property
    def day_is_time(self) -> bool:
        """Whether the partition is taken from a timestamp."""
        return any(column.name == self.day and column.type == "timestamp" for column in self.columns)


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


EARLIEST, LATEST = -2_208_988_800_000_000, 253_402_300_799_999_999
"""The years 1900 to 9999, in microseconds: Spark moves what JDBC reads of earlier ones between two calendars, and by
the local mean time of Java's zone; infinity lies outside."""

WINDOW_HI = ("window_hi", "bigint", "the window that wrote the row: its transactions are below this xid")

MESSAGE_HISTORY = Table(
    "message_history",
    "One row per message: its last state, its times, where it was published",
    _columns(
        ("id", "bigint", "place of the insert; never changes"),
        ("message_id", "string", "identity for life; the header outbox-id"),
        ("topic", "string", "the topic"),
        ("key", "binary", "the record's key"),
        ("body", "binary", "the record's value; null: a tombstone"),
        ("body_json", "string", "the body as text if it is JSON (RFC 8259, UTF-8), else null"),
        ("headers", "map<string,string>", "the user's headers; null: not given"),
        ("order_key", "binary", "argument of the selector; null: the key"),
        ("selector", "string", "message queue selector; null: murmur2"),
        ("queue", "int", "partition requested by the producer, or null"),
        ("lane", "int", "the lane that published it, 0 to 7"),
        ("tags", "array<string>", "RocketMQ's TAGS"),
        ("index_keys", "array<string>", "RocketMQ's KEYS"),
        ("producer_group", "string", "group that is asked about a half message"),
        ("transaction_id", "string", "the producer's name of the transaction"),
        ("checker", "string", "checker that is asked"),
        ("biz_type", "string", "business object to ask about: its kind"),
        ("biz_id", "string", "business object to ask about: its id"),
        ("traceparent", "string", "W3C trace context of the producer"),
        ("state", "string", "COMMITTED, UNKNOWN, EXHAUSTED, ROLLED_BACK, CANCELLED, DEAD or SKIPPED"),
        ("status", "string", "PUBLISHED, if it was published, else the state"),
        ("born_at", "timestamp", "when it was inserted"),
        ("decided_at", "timestamp", "when its state last changed, or null"),
        ("deliver_at", "timestamp", "earliest time of publication, or null"),
        ("deliver_before", "timestamp", "end of the time of publication, or null"),
        ("published_at", "timestamp", "when its first publication was recorded, or null"),
        ("partition", "int", "Kafka partition of the first publication"),
        ("offset", "bigint", "Kafka offset of the first publication; null with exactly-once if unknown"),
        ("position", "bigint", "place in the order, taken when COMMITTED or released"),
        ("checks", "int", "how often its producer was asked about it"),
        ("remark", "string", "reason of the decision, by its author; null: undecided"),
        ("xid", "bigint", "the transaction that gave it this state"),
        WINDOW_HI,
    ),
    day="born_at",
    order=("id",),
)

TRANSACTION_EVENTS = Table(
    "transaction_events",
    "One row per transition and per check of a half message",
    _columns(
        ("xid", "bigint", "the transaction that wrote the event"),
        ("id", "bigint", "the message's id"),
        ("message_id", "string", "the message's identity"),
        ("happened_at", "timestamp", "when"),
        ("kind", "string", "transition or check"),
        ("from_state", "string", "the state before; null: it was inserted"),
        ("to_state", "string", "the state after; null for a check"),
        ("answer", "string", "what a check returned"),
        ("actor", "string", "who did it"),
        ("reason", "string", "why"),
        WINDOW_HI,
    ),
    day="happened_at",
    order=("id", "happened_at"),
)

PUBLICATIONS = Table(
    "publications",
    "One row per publication of a message; a message published twice has two rows",
    _columns(
        ("position", "bigint", "the message's position, as in message_history"),
        ("partition", "int", "Kafka partition"),
        ("offset", "bigint", "Kafka offset"),
        ("published_at", "timestamp", "when the publication was recorded"),
        ("epoch", "bigint", "the relay's ownership of its lanes"),
        ("batch", "bigint", "the batch within the epoch"),
        ("xid", "bigint", "the transaction that recorded it"),
        WINDOW_HI,
    ),
    day="published_at",
    order=("position",),
)

CORE = (TRANSACTION_EVENTS, PUBLICATIONS, MESSAGE_HISTORY)
"""The tables that an export writes, in the order in which it commits them: the watermark is in the last."""
