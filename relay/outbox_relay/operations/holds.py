"""Reads what is held, by which error and since when, and asks the relay to try it again.

A hold is a message, a key (or an explicit queue), a partition or a topic whose messages are not published now, because
one of them cannot be, or because Kafka or an operator lets none of them in.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row, dict_row

from outbox.statements import Statements
from outbox_relay.text.formatting import bytes_for_json, cell, many, printable

STATEMENTS = Statements("outbox_relay/operations/holds.sql")
MOST = 100
"""Holds that are listed; the oldest first."""
_LIMITS = (
    "raise max.message.bytes of the topic in Kafka, and: outbox topic alter {topic} --max-message-bytes N"
)
_NEXT = "publish or give up what fails: outbox holds ls --topic {topic}"
CAUSES = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic: outbox topic create {topic}",
    "PARTITIONS_MISSING": "add the missing partitions in Kafka",
    "MESSAGE_TOO_LARGE": _LIMITS,
    "MSG_SIZE_TOO_LARGE": _LIMITS,
    "TOPIC_AUTHORIZATION_FAILED": "let the relay's Kafka user write to topic {topic}",
    "LEADER_NOT_AVAILABLE": "start a broker that has the partition",
    "NOT_ENOUGH_REPLICAS": "start brokers that have replicas of it, or lower its min.insync.replicas",
    "PARTITION_UNAVAILABLE": "bring the partition back",
    "INVALID_TIMESTAMP": "correct the clock of the relay's host",
    "TOPIC_LOCKED": "end the transaction that changes outbox.topic",
    "QUEUE_OUT_OF_RANGE": "no partition of that number exists (outbox topic show {topic}): add it in Kafka, and pin it",
    "TOO_MANY_HELD": _NEXT,
    "TOO_MANY_PARKED": _NEXT,
}
"""What mends the cause, by the code of an error; the hold is released after it."""
BEYOND_REPAIR = {
    "SELECTOR_FAILED": "the message's selector cannot choose a partition; send it again with another one",
    "TOPIC_EXCEPTION": "Kafka allows no topic of that name; send the message again to another topic",
    "MALFORMED": "no Kafka record can be made of it; send it again without the fault",
}


@dataclass(frozen=True)
class HoldView:
    """One hold.

    Attributes:
        kind: `message`, `key`, `partition` or `topic`.
        lanes: where its messages wait.
        topic: of its messages.
        queue: the explicit partition that has the order, in place of a key; of a partition its number.
        order_key: the key.
        id: of the message that fails; of a partition or a topic the lowest that waits.
        message_id: of the same message; None: it waits no more, and the relay has not come to the others yet.
        error: why; it begins with a code.
        since: when it began.
        tries: how often it was tried again.
        requested_at: when an operator asked for another try that has not ended.
        is_being_tried: whether its messages are being published now.
        in_doubt: Kafka may have the message that fails.
        may_be_given_up: the others can go on without the message that fails.
        numbers: its rows in outbox.parked_key.
        has_relay: whether a living relay has its lanes.
        waiting: how many messages wait behind the one that fails; of a partition and of a topic all.
    """

    kind: str
    lanes: list[int]
    topic: str
    queue: int | None
    order_key: bytes | None
    id: int
    message_id: uuid.UUID | None
    error: str
    since: datetime
    tries: int
    requested_at: datetime | None
    is_being_tried: bool
    in_doubt: bool
    may_be_given_up: bool
    numbers: list[int]
    has_relay: bool
    waiting: int

    @property
    def code(self) -> str:
        """The code of its error."""
        return self.error.partition(":")[0]

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused the topic: only they let it go on."""
        return self.kind == "topic" and self.code == "TOPIC_PAUSED"

    @property
    def is_over(self) -> bool:
        """Whether the message that failed is given up or set aside, and the relay has not come to the others yet."""
        return self.kind in ("key", "message") and self.message_id is None

    @property
    def place(self) -> str:
        """What is held."""
        topic = f"topic {printable(self.topic)}"
        if self.kind in ("topic", "partition"):
            return f"{topic}, {'all of it' if self.queue is None else f'partition {self.queue}'}"
        if self.kind == "message":
            return f"message {self.id}, {topic}"
        order = f"key {cell(self.order_key)}" if self.queue is None else f"queue {self.queue}"
        return f"{topic}, {order}"

    @property
    def chosen_by(self) -> str:
        """What `outbox holds release` takes for it."""
        if self.kind == "topic" or self.message_id is None:
            return f"--topic {printable(self.topic)} --error {printable(self.code)}"
        return str(self.id)

    @property
    def being_tried(self) -> str:
        """What comes of the try that is under way, or was when its relay ended."""
        if self.has_relay:
            return f"its {self.kind} is being tried again now; if it fails again: outbox holds ls"
        return (
            f"the relay that was trying its {self.kind} again has ended; the next one goes on with that: "
            "outbox relay run"
        )

    @property
    def behind(self) -> str:
        """At which message it is held, how many wait, and from which on."""
        held = f", {many(self.waiting, 'message')} held" if self.waiting else ""
        if self.kind == "key":
            return held if self.is_over else f" at message {self.id}{held}"
        return f"{held}, from message {self.id} on" if held else ""

    @property
    def tried(self) -> str:
        """What comes of the release that somebody asked for, or how often it was tried in vain."""
        if self.is_being_tried and self.has_relay:
            return "; it is being tried again now"
        if self.requested_at is not None:
            return f"; to be tried again, as asked at {cell(self.requested_at)}"
        return f"; tried again {many(self.tries, 'time')}" if self.tries else ""

    def hold_up(self, id_: int) -> str:
        """State what this means for one of its messages: the one that fails, or one behind it."""
        since, error = cell(self.since), printable(self.error)
        if self.kind in ("topic", "partition"):
            return f"held since {since} with {self.place} ({many(self.waiting, 'message')}): {error}"
        if id_ != self.id:
            return f"held since {since} behind message {self.id}, which cannot be published: {error}"
        behind = f", and holds up {many(self.waiting, 'message')} of its key" if self.waiting else ""
        return f"cannot be published since {since}{behind}: {error}"

    def repair(self) -> list[str]:
        """Return what an operator can do about it, best first."""
        if self.is_over:
            then = "what is held behind it follows" if self.waiting else "the hold ends"
            return [f"the message that failed is given up; {then} once a relay comes to it"]
        if self.is_paused:
            return [f"let it go on: outbox topic resume {printable(self.topic)}"]
        release = f"outbox holds release {self.chosen_by}"
        if self.code in BEYOND_REPAIR:
            lines = [BEYOND_REPAIR[self.code]]
        else:
            cause = CAUSES.get(self.code, "repair the cause").format(topic=printable(self.topic))
            by_itself = (
                ""
                if self.kind in ("key", "message")
                else "; the relay tries it again within a minute, or now"
            )
            lines = [f"{cause}{by_itself or ', then'}: {release}"]
        doubt = " --may-be-published" if self.in_doubt else ""
        if self.may_be_given_up:
            lines.append(f"or give it up: outbox holds skip {self.id}{doubt} --reason TEXT")
            if not doubt:
                lines.append(f"or set it aside: outbox holds dead {self.id} --reason TEXT")
        elif self.code in BEYOND_REPAIR and self.waiting:
            lines.append(
                f"give up each that waits, as the first: outbox holds skip {self.id}{doubt} --reason TEXT"
            )
        return lines

    def document(self) -> dict[str, Any]:
        """Return it for machines, with what to do about it."""
        fields = asdict(self)
        del fields["numbers"], fields["may_be_given_up"]
        return {**fields, "order_key": bytes_for_json(self.order_key), "repair": self.repair()}


@dataclass(frozen=True)
class HoldFilter:
    """Which holds; None sets no condition. `error` is a code, `older` seconds since the hold began."""

    topic: str | None = None
    error: str | None = None
    older: float | None = None


ALL = HoldFilter()


def everything(
    conn: psycopg.Connection[Any],
    chosen: HoldFilter = ALL,
    most: int | None = MOST,
    *,
    of: Iterable[str] = ("keys", "topics"),
) -> list[HoldView]:
    """Return holds, oldest first; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection.
        chosen: which ones.
        most: how many at most; None: all.
        of: those of `keys` (and messages) or of `topics` (and partitions); the others are not read.
    """
    return _read(conn, {**asdict(chosen), "most": most}, **dict.fromkeys(of, "true"))


def of_message(conn: psycopg.Connection[Any], id_: int) -> HoldView | None:
    """Return the hold for which a message waits; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection.
        id_: the message's.
    """
    row = conn.execute(STATEMENTS["number"], {"id": id_}).fetchone()
    if row is None or row[0] is None:
        return None
    named = "topics" if row[1] else "keys"
    values = {**asdict(ALL), "most": 1, "number": row[0]}
    found = _read(conn, values, **{named: STATEMENTS[f"of_{named[:-1]}"]})
    return found[0] if found else None


def _read(
    conn: psycopg.Connection[Any], values: dict[str, Any], *, keys: str = "false", topics: str = "false"
) -> list[HoldView]:
    with conn.cursor(row_factory=class_row(HoldView)) as cursor:
        return cursor.execute(read_statement(keys=keys, topics=topics), values).fetchall()


def read_statement(name: str = "columns", *, keys: str = "false", topics: str = "false") -> sql.Composed:
    """Return the statement that reads holds; each of the last arguments is the condition of one kind."""
    held = sql.SQL(STATEMENTS["held"]).format(keys=sql.SQL(keys), topics=sql.SQL(topics))
    return sql.SQL(STATEMENTS[name]).format(held=held)


def waiting(conn: psycopg.Connection[Any], hold: HoldView, most: int) -> list[dict[str, Any]]:
    """Return the first messages that wait for a key or topic, in their order."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["waiting"], {"numbers": hold.numbers, "most": most}).fetchall()


def release(conn: psycopg.Connection[Any], holds: Iterable[HoldView]) -> list[HoldView]:
    """Ask the relay to try holds again, and return those for which that is done; needs the role outbox_operator.

    It tries them within about a second, the keys one after the other. A topic that is paused is left alone, and so is
    what somebody else changes, or what is being tried.
    """
    holds = list(holds)
    numbers = [number for hold in holds if not hold.is_paused for number in hold.numbers]
    asked = {row[0] for row in conn.execute(STATEMENTS["release"], {"numbers": numbers})}
    return [hold for hold in holds if not asked.isdisjoint(hold.numbers)]
