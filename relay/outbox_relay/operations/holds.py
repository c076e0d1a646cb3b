"""Reads what is held, by which error and since when, and asks the relay to try it again.

A hold is a message, a key (or an explicit queue), a topic or a lane whose messages are not published now, because one
of them cannot be, or because Kafka or an operator lets none of them in.
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
from outbox_relay.publisher.lease import LOCK_WAIT_S, lock_holders
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.text.errors import OperatorError
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
        kind: `message`, `key`, `partition`, `topic` or `lane`.
        lanes: where its messages wait.
        topic: of its messages; of a lane that of the message at which it stopped.
        queue: the explicit partition that has the order, in place of a key; of a partition its number.
        order_key: the key.
        id: of the message that fails; of a topic that of the first one to try; None where a lane waits for Kafka.
        message_id: of the same message.
        error: why; it begins with a code.
        since: when it began.
        tries: how often it was tried again.
        requested_at: when an operator asked for another try that has not ended.
        is_being_tried: whether its messages are being published now.
        in_doubt: Kafka may have the message that fails.
        may_be_given_up: the others can go on without the message that fails.
        numbers: its rows in outbox.parked_key.
        has_relay: whether a living relay has its lanes.
        waiting: how many messages wait behind the one that fails; of a topic all; of a lane they are not counted.
    """

    kind: str
    lanes: list[int]
    topic: str | None
    queue: int | None
    order_key: bytes | None
    id: int | None
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
    waiting: int | None

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
        topic = f"topic {printable(self.topic or '')}"
        if self.kind == "topic":
            return f"{topic}, all of it"
        if self.kind == "lane":
            return f"lane {self.lanes[0]}"
        if self.kind == "partition":
            return f"{topic}, partition {self.queue}"
        if self.kind == "message":
            return f"message {self.id}, {topic}"
        order = f"key {cell(self.order_key)}" if self.queue is None else f"queue {self.queue}"
        return f"{topic}, {order}"

    @property
    def chosen_by(self) -> str:
        """What `outbox holds release` takes for it, and for nothing else."""
        if self.kind == "topic":
            return f"--topic {printable(self.topic or '')} --error {printable(self.code)}"
        return (
            str(self.id) if self.id is not None else f"--lane {self.lanes[0]} --error {printable(self.code)}"
        )

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
        """How many messages wait, where they are counted, and there are some."""
        return f", {many(self.waiting, 'message')} held" if self.waiting else ""

    def hold_up(self, id_: int) -> str:
        """State what this means for one of its messages: the one that fails, or one behind it."""
        error = printable(self.error)
        if self.kind == "lane":
            return self._behind_a_lane(id_, error)
        if self.kind in ("topic", "partition"):
            return f"waits, with all of its {self.kind}: {error}"
        if id_ == self.id:
            behind = many(self.waiting or 0, "message")
            return f"cannot be published, and holds up {behind} of its key: {error}"
        return f"held behind message {self.id}, which cannot be published: {error}"

    def _behind_a_lane(self, id_: int, error: str) -> str:
        held = f"lane {self.lanes[0]} is held"
        since = f"since {cell(self.since)}"
        again = "; it is being tried again now" if self.is_being_tried and self.has_relay else ""
        if self.message_id is None:  # what waits for Kafka is not one message, and this may be among it
            return f"{held} {since}: {error}{again}"
        if id_ == self.id:
            return f"cannot be published, and {held} at it {since}: {error}{again}"
        return f"{held} {since} at message {self.id or self.message_id}, in front of it: {error}{again}"

    def repair(self) -> list[str]:
        """Return what an operator can do about it, best first."""
        if self.is_over:
            return [
                "what it failed with is given up; what is held behind it follows, once a relay comes to it"
            ]
        if self.is_paused:
            return [f"let it go on: outbox topic resume {printable(self.topic or '')}"]
        release = f"outbox holds release {self.chosen_by}"
        if self.code in BEYOND_REPAIR:
            lines = [BEYOND_REPAIR[self.code]]
        else:
            cause = CAUSES.get(self.code, "repair the cause").format(topic=printable(self.topic or "TOPIC"))
            by_itself = (
                ""
                if self.kind in ("key", "message")
                else "; the relay tries it again within a minute, or now"
            )
            lines = [f"{cause}{by_itself or ', then'}: {release}"]
        if self.may_be_given_up and self.in_doubt:
            lines.append(f"or give it up: outbox holds skip {self.id} --may-be-published --reason TEXT")
        elif self.may_be_given_up:
            lines.append(f"or give it up: outbox holds skip {self.id} --reason TEXT")
            lines.append(f"or set it aside: outbox holds dead {self.id} --reason TEXT")
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
    lane: int | None = None
    older: float | None = None


ALL = HoldFilter()


def everything(
    conn: psycopg.Connection[Any],
    chosen: HoldFilter = ALL,
    most: int | None = MOST,
    *,
    of: Iterable[str] = ("keys", "topics", "lanes"),
) -> list[HoldView]:
    """Return holds, oldest first; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection.
        chosen: which ones.
        most: how many at most; None: all.
        of: those of `keys` (and messages), `topics` or `lanes`; the others are not read.
    """
    return _read(conn, {**asdict(chosen), "most": most}, **dict.fromkeys(of, "true"))


def of_message(conn: psycopg.Connection[Any], id_: int, lane: int | None = None) -> HoldView | None:
    """Return the hold for which a message waits; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection.
        id_: the message's.
        lane: the message is due and not published, and waits for nothing: return the stop of this lane.
    """
    values = {**asdict(ALL), "most": 1}
    if lane is not None:
        found = _read(conn, {**values, "at": lane}, lanes=STATEMENTS["of_lane"])
    else:
        row = conn.execute(STATEMENTS["number"], {"id": id_}).fetchone()
        if row is None or row[0] is None:
            return None
        named = "topics" if row[1] else "keys"
        found = _read(conn, {**values, "number": row[0]}, **{named: STATEMENTS[f"of_{named[:-1]}"]})
    return found[0] if found else None


def _read(
    conn: psycopg.Connection[Any],
    values: dict[str, Any],
    *,
    keys: str = "false",
    topics: str = "false",
    lanes: str = "false",
) -> list[HoldView]:
    with conn.cursor(row_factory=class_row(HoldView)) as cursor:
        statement = read_statement(keys=keys, topics=topics, lanes=lanes)
        return cursor.execute(statement, values).fetchall()


def read_statement(
    name: str = "columns", *, keys: str = "false", topics: str = "false", lanes: str = "false"
) -> sql.Composed:
    """Return the statement that reads holds; each of the last arguments is the condition of one kind."""
    held = sql.SQL(STATEMENTS["held"]).format(
        keys=sql.SQL(keys), topics=sql.SQL(topics), lanes=sql.SQL(lanes)
    )
    return sql.SQL(STATEMENTS[name]).format(held=held)


def waiting(conn: psycopg.Connection[Any], hold: HoldView, most: int) -> list[dict[str, Any]]:
    """Return the first messages that wait for a key or topic, in their order."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["waiting"], {"numbers": hold.numbers, "most": most}).fetchall()


class LaneRowsHeldError(OperatorError):
    """Rows of lanes are held by another transaction, so a retry of these lanes could not be requested."""

    def __init__(self, lanes: list[int], holders: list[str], requested: list[int]) -> None:
        names = ", ".join(map(str, lanes))
        asked = f"; a retry of {', '.join(map(str, requested))} is requested" if requested else ""
        super().__init__(
            f"{'lanes' if len(lanes) > 1 else 'lane'} {names} cannot be changed: another transaction holds the row in "
            f"outbox.lane; held, as far as can be seen, by: "
            f"{printable(', '.join(holders)) or 'a session that has just ended'}{asked}\n"
            "end that transaction (COMMIT, or SELECT pg_terminate_backend(pid)), then: "
            f"{' and '.join(f'outbox holds release --lane {lane}' for lane in lanes)}; "
            "the relay tries held lanes again within a minute by itself"
        )


def release(conn: psycopg.Connection[Any], holds: Iterable[HoldView]) -> list[HoldView]:
    """Ask the relay to try holds again, and return those for which that is done; needs the role outbox_operator.

    It tries them within about a second, the keys one after the other. A topic that is paused is left alone, and so is
    what somebody else changes, or what is being tried.

    Raises:
        LaneRowsHeldError: rows of some lanes are held by another transaction; all else is asked for.
    """
    holds = list(holds)
    numbers = [number for hold in holds if not hold.is_paused for number in hold.numbers]
    asked = {row[0] for row in conn.execute(STATEMENTS["release"], {"numbers": numbers})}
    lanes = release_lanes(conn, [hold.lanes[0] for hold in holds if hold.kind == "lane"])
    return [
        hold
        for hold in holds
        if (hold.lanes[0] in lanes if hold.kind == "lane" else not asked.isdisjoint(hold.numbers))
    ]


def release_lanes(conn: psycopg.Connection[Any], lanes: Iterable[int]) -> list[int]:
    """Ask for a retry of those of the lanes that are stopped, and return them.

    Each lane is asked for in a transaction of its own, which waits a second for a row that is held: what is requested
    stays requested, whatever happens with the next lane.

    Raises:
        LaneRowsHeldError: rows of some lanes are held by another transaction; the others are asked for.
    """
    requested, held = [], []
    for lane in lanes:
        try:
            with conn.transaction():
                conn.execute(LANE_STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
                requested += [row[0] for row in conn.execute(STATEMENTS["release_lane"], {"lane": lane})]
        except psycopg.errors.LockNotAvailable:
            held.append(lane)
    if held:
        raise LaneRowsHeldError(held, lock_holders(conn), sorted(requested))
    return sorted(requested)
