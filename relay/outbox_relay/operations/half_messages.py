"""Finds the half messages that somebody has to decide, page by page, the oldest first."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.operations import messages
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/half_messages.sql")

STATES = ("UNKNOWN", "EXHAUSTED")
OVERDUE_S = 10.0
"""Seconds that a half message may be due before it counts as overdue: no checker has got to it."""

SHARED = ("topic", "index_key", "tag", "transaction_id", "checker", "biz_type", "biz_id")
"""Conditions that `outbox message ls` has too."""


@dataclass(frozen=True)
class HalfMessageFilter:
    """The filters of a list of half messages; None sets no condition."""

    producer_group: str | None = None
    states: tuple[str, ...] = STATES
    overdue: bool = False
    topic: str | None = None
    tag: str | None = None
    index_key: str | None = None
    transaction_id: str | None = None
    checker: str | None = None
    biz_type: str | None = None
    biz_id: str | None = None
    since: float | datetime | None = None
    until: float | datetime | None = None
    after: int | None = None

    def conditions(self) -> tuple[sql.Composed, dict[str, Any]]:
        """Give the conditions, as SQL with placeholders, and the values they bind."""
        parts = [STATEMENTS["by_states"]]
        values: dict[str, Any] = {"states": list(self.states)}
        if self.overdue:
            parts.append(STATEMENTS["by_overdue"])
            values["overdue"] = OVERDUE_S
        if self.after is not None:
            parts.append(STATEMENTS["by_after"])
            values["after"] = self.after
        for name in SHARED:
            value = getattr(self, name)
            if value is not None:
                parts.append(messages.STATEMENTS[f"by_{name}"])
                values[name] = value
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                key = name if isinstance(value, datetime) else f"{name}_ago"
                parts.append(messages.STATEMENTS[f"by_{key}"])
                values[key] = value
        return sql.SQL(" AND ").join(sql.SQL(part).format() for part in parts), values


def compose(chosen: HalfMessageFilter, limit: int) -> tuple[sql.Composed, dict[str, Any]]:
    """Put the statement of a page together, with the values it binds."""
    conditions, values = chosen.conditions()
    statement = STATEMENTS["page" if chosen.index_key is None else "rare"]
    return _described(statement, conditions), values | {"group": chosen.producer_group, "limit": limit}


def _described(statement: str, conditions: sql.Composed) -> sql.Composed:
    return sql.SQL(statement).format(
        conditions=conditions,
        described=sql.SQL(STATEMENTS["described"]),
        joined=sql.SQL(STATEMENTS["joined"]),
    )


def page(conn: psycopg.Connection[Any], chosen: HalfMessageFilter, limit: int) -> list[Row]:
    """Read one page, the oldest first; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection that is in no transaction.
        chosen: the filters.
        limit: how many at most.
    """
    statement, values = compose(chosen, limit)
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(STATEMENTS["settings"], {"bitmaps": "off" if chosen.index_key is None else "on"})
        return cursor.execute(statement, values).fetchall()


def find(conn: psycopg.Connection[Any], number: int | None, message_id: uuid.UUID | None) -> Row | None:
    """Read one message with the columns of a half message, whatever its state; None without one."""
    name = "id" if number is not None else "foreign_message_id"
    if message_id is not None and message_id.version == 8:
        name = "own_message_id"
    condition = sql.Composed([sql.SQL(messages.STATEMENTS[f"by_{name}"])])
    statement = _described(STATEMENTS["one"], condition)
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, {"id": number, "message_id": message_id}).fetchone()


def get(conn: psycopg.Connection[Any], identity: tuple[int | None, uuid.UUID | None]) -> Row:
    """Read one message by its id or message id.

    Raises:
        OperatorError: it does not exist; with how to find it.
    """
    found = find(conn, *identity)
    if found is None:
        raise OperatorError(
            f"there is no message {identity[0] or identity[1]}: it was never written, its transaction was rolled "
            "back, or its partition has been dropped\nsearch for it: outbox tx ls --help, outbox message ls --help"
        )
    return found


def now(conn: psycopg.Connection[Any]) -> datetime:
    """The database's clock, by which everything is due."""
    moment: datetime
    (moment,) = conn.execute(STATEMENTS["now"]).fetchone() or (datetime.now(UTC),)
    return moment
