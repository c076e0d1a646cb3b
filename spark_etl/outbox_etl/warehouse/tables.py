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
    """What each file is sorted by, so that its smallest and largest values say what it can hold."""

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


WINDOW_HI = ("window_hi", "bigint", "the window that wrote the row: all its transactions are below this xid")

MESSAGE_HISTORY = Table(
    "message_history",
    "One row per message: its last state, every time, where it was published",
    _columns(
        ("id", "bigint", "place of the insert; never changes"),
        ("message_id", "string", "the message's identity for life, the header outbox-id"),
        ("topic", "string", "the topic it was sent to"),
        ("key", "binary", "the record's key"),
        ("body", "binary", "the record's value as it was sent; null is a tombstone"),
        ("body_json", "string", "the body as text where it is JSON (RFC 8259, UTF-8), else null"),
        ("headers", "map<string,string>", "the user's headers; null when there are none"),
        ("order_key", "binary", "arg of the message queue selector; null: the key"),
        ("selector", "string", "name of the message queue selector; null: murmur2"),
        ("queue", "int", "the partition that the producer asked for; null: none"),
        ("lane", "int", "the lane that published it, 0 to 7"),
        ("tags", "array<string>", "RocketMQ's TAGS"),
        ("index_keys", "array<string>", "RocketMQ's KEYS"),
        ("producer_group", "string", "who is asked about a half message"),
        ("transaction_id", "string", "the producer's name of its transaction"),
        ("checker", "string", "the checker that is asked"),
        ("biz_type", "string", "what the checker is asked about: the kind"),
        ("biz_id", "string", "what the checker is asked about: the one"),
        ("traceparent", "string", "W3C trace context of the producer"),
        ("state", "string", "COMMITTED, UNKNOWN, EXHAUSTED, ROLLED_BACK, CANCELLED, DEAD or SKIPPED"),
        ("status", "string", "PUBLISHED when a COMMITTED message was published, else the state"),
        ("born_at", "timestamp", "when it was inserted"),
        ("decided_at", "timestamp", "when its state was last changed; null: never"),
        ("deliver_at", "timestamp", "not published before this time; null: at once"),
        ("published_at", "timestamp", "when its first publication was recorded; null: not published"),
        ("partition", "int", "Kafka partition of the first publication"),
        ("offset", "bigint", "Kafka offset of the first publication; null with exactly-once if unknown"),
        ("position", "bigint", "place in the order, taken when it became COMMITTED or was released"),
        ("checks", "int", "how often its producer was asked about it"),
        ("remark", "string", "why it was decided, in the words of whoever did; null: undecided"),
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
        ("from_state", "string", "the state before; null: the message was born"),
        ("to_state", "string", "the state after; null for a check"),
        ("answer", "string", "what a check was answered"),
        ("actor", "string", "who did it"),
        ("reason", "string", "why"),
        WINDOW_HI,
    ),
    day="happened_at",
    order=("id", "happened_at"),
)

PUBLICATIONS = Table(
    "publications",
    "One row per published message and publication; one that was published twice has two",
    _columns(
        ("position", "bigint", "the message's position; message_history has the same"),
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
