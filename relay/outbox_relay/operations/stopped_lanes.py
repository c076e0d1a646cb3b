"""Reads which lanes are stopped, at what and since when, and asks the relay to try them again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.publisher.lease import LOCK_WAIT_S, lock_holders
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import cell, printable

STATEMENTS = Statements("outbox_relay/operations/stopped_lanes.sql")

SET_ASIDE = "or set it aside: outbox message dead {id} --reason TEXT"
REPAIRS = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic: outbox topic create {topic}",
    "QUEUE_OUT_OF_RANGE": "no partition of that number exists: outbox topic show {topic}",
    "PARTITIONS_MISSING": "add the missing partitions in Kafka, then: outbox lane retry {lane}",
    "MESSAGE_TOO_LARGE": "raise max.message.bytes of the topic in Kafka, then: "
    "outbox topic alter {topic} --max-message-bytes N",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic in Kafka, then: "
    "outbox topic alter {topic} --max-message-bytes N",
    "SELECTOR_FAILED": "the message's selector cannot choose a partition; send it again with another one",
    "TOPIC_AUTHORIZATION_FAILED": "let the relay's Kafka user write to topic {topic}, then: outbox lane retry {lane}",
    "TOPIC_EXCEPTION": "Kafka allows no topic of that name; send the message again to another topic",
    "MALFORMED": "no Kafka record can be made of it; send it again without the fault",
    "TOO_MANY_HELD": "publish or give up what fails: outbox lane ls",
    "TOO_MANY_PARKED": "publish or give up what fails: outbox lane ls",
    "INVALID_TIMESTAMP": "correct the clock of the relay's host; the topic goes on by itself",
    "TOPIC_LOCKED": "end the transaction that changes outbox.topic; the topic goes on by itself",
    "LEADER_NOT_AVAILABLE": "start a broker that has the partition, then: outbox lane retry {lane}",
    "NOT_ENOUGH_REPLICAS": "start brokers that have replicas of it, then: outbox lane retry {lane}",
    "PARTITION_UNAVAILABLE": "bring the partition back, then: outbox lane retry {lane}",
}
GIVE_UP = (
    "or, as Kafka may have it already, give it up: outbox message skip {id} --may-be-published --reason TEXT"
)


@dataclass(frozen=True)
class LaneStop:
    """A lane; `error` is None where it is not stopped. `id`, `topic` and `state` are of the message it stopped at.

    `owner` is the living relay's name, None where no relay runs. `in_doubt`: that message may be in Kafka already.
    """

    lane: int
    owner: str | None
    error: str | None
    message_id: uuid.UUID | None
    stopped_at: datetime | None
    retrying_at: datetime | None
    retry_requested_at: datetime | None
    id: int | None
    topic: str | None
    state: str | None
    in_doubt: bool

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, or being tried again after a stop."""
        return self.error is not None

    @property
    def condition(self) -> str:
        """One word or two for a table."""
        if not self.is_stopped:
            return "runs" if self.owner is not None else "no relay"
        if self.owner is None:
            return "stopped, no relay"
        return "being retried" if self.retrying_at is not None else "stopped"

    def hold_up(self, message_id: uuid.UUID) -> str:
        """Return what the stop means for one of the lane's messages: the cause, or something behind it."""
        since = cell(self.stopped_at)
        error = printable(self.error or "")
        again = (
            "; it is being tried again now" if self.retrying_at is not None and self.owner is not None else ""
        )
        if message_id == self.message_id:
            return f"cannot be published, and lane {self.lane} is stopped at it since {since}: {error}{again}"
        if self.message_id is None:  # what waits for Kafka is not one message, and this may be among it
            return f"lane {self.lane} is stopped since {since}: {error}{again}"
        at = f"message {self.id or self.message_id}"
        return f"lane {self.lane} is stopped since {since} at {at}, in front of it: {error}{again}"

    def repair(self) -> list[str]:
        """Return what an operator can do about the stop, best first."""
        code = (self.error or "").partition(":")[0]
        found = REPAIRS.get(code)
        lines = [] if found is None else [found]
        if self.state == "COMMITTED" and code != "TOO_MANY_HELD":
            way_out = GIVE_UP if self.in_doubt else SET_ASIDE
            lines.append(way_out if lines else way_out.removeprefix("or ").removeprefix(", "))
        return [line.format(id=self.id, topic=self.topic, lane=self.lane) for line in lines]


def everything(conn: psycopg.Connection[Any]) -> list[LaneStop]:
    """Return all lanes; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(LaneStop)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


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
            f"outbox lane retry {lanes[0] if len(lanes) == 1 else '--all'}; "
            "the relay tries stopped lanes again within a minute by itself"
        )
        self.lanes = lanes


def request_retry(conn: psycopg.Connection[Any], lanes: Iterable[int]) -> list[int]:
    """Ask for a retry of those of the lanes that are stopped, and return them; needs the role outbox_operator.

    The relay tries them within about a second. Each lane is asked for in a transaction of its own, which waits a second
    for a row that is held: what is requested stays requested, whatever happens with the next lane.

    Args:
        conn: an autocommit connection that is in no transaction.
        lanes: their numbers.

    Raises:
        LaneRowsHeldError: rows of some lanes are held by another transaction; the others are asked for.
    """
    requested, held = [], []
    for lane in lanes:
        try:
            with conn.transaction():
                conn.execute(LANE_STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
                requested += [row[0] for row in conn.execute(STATEMENTS["request"], {"lane": lane})]
        except psycopg.errors.LockNotAvailable:
            held.append(lane)
    if held:
        raise LaneRowsHeldError(held, lock_holders(conn), sorted(requested))
    return sorted(requested)


def request_retry_of_topic(conn: psycopg.Connection[Any], topic: str) -> list[int]:
    """Ask for a retry of the lanes that stopped at a message of this topic; return them."""
    return request_retry(conn, [one.lane for one in everything(conn) if one.topic == topic])
