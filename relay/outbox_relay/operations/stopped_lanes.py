"""Reads which lanes are stopped, at what and since when, and asks the relay to try them again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_relay import output
from outbox_relay.statements import Statements

STATEMENTS = Statements("operations/stopped_lanes.sql")

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
    "PARTITION_UNAVAILABLE": "bring the partition back, then: outbox lane retry {lane}",
}
IN_DOUBT = {"PARTITION_UNAVAILABLE"}
"""Stops at a message that Kafka may have taken: it cannot be set aside."""


@dataclass(frozen=True)
class Lane:
    """A lane; `error` is None where it is not stopped. `id`, `topic` and `state` are of the message it stopped at.

    `owner` is the living relay's name, None where no relay runs.
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
        """Say what the stop means for one of the lane's messages: the cause, or something behind it."""
        since = output.cell(self.stopped_at)
        error = output.printable(self.error or "")
        again = (
            "; it is being tried again now" if self.retrying_at is not None and self.owner is not None else ""
        )
        if message_id == self.message_id:
            return f"cannot be published, and lane {self.lane} is stopped at it since {since}: {error}{again}"
        at = f"message {self.id or self.message_id}"
        return f"lane {self.lane} is stopped since {since} at {at}, in front of it: {error}{again}"

    def repair(self) -> list[str]:
        """Return what an operator can do about the stop, best first."""
        code = (self.error or "").partition(":")[0]
        found = REPAIRS.get(code)
        lines = [] if found is None else [found]
        if self.state == "COMMITTED" and code not in IN_DOUBT:
            lines.append(SET_ASIDE if lines else SET_ASIDE.removeprefix("or "))
        return [line.format(id=self.id, topic=self.topic, lane=self.lane) for line in lines]


def everything(conn: psycopg.Connection[Any]) -> list[Lane]:
    """Return all lanes; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(Lane)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


def request_retry(conn: psycopg.Connection[Any], lanes: Iterable[int]) -> list[int]:
    """Ask for a retry of those of the lanes that are stopped, and return them; needs the role outbox_operator.

    The relay tries them within about a second.
    """
    rows = conn.execute(STATEMENTS["request"], {"lanes": list(lanes)}).fetchall()
    return sorted(lane for (lane,) in rows)


def request_retry_of_topic(conn: psycopg.Connection[Any], topic: str) -> list[int]:
    """Ask for a retry of the lanes that stopped at a message of this topic; return them."""
    return request_retry(conn, [one.lane for one in everything(conn) if one.topic == topic])
