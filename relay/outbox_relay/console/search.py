"""Finds messages by what a person has of them: an id, a key, a business id, an index key, a transaction id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from outbox_relay.operations import filters, messages
from outbox_relay.operations.filters import FilterError, Filters
from outbox_relay.operations.messages import Row

MOST_FOUND = 50
WAYS: Mapping[str, str] = {
    "key": "key",
    "biz_id": "business id",
    "index_key": "index key",
    "transaction_id": "transaction id",
}


def by_text(conn: psycopg.Connection[Any], text: str) -> list[tuple[str, Row]]:
    """Return messages of which the text names something, each with what it names; the newest first.

    Args:
        conn: a session that reads.
        text: an id or a message id, or else what is tried as each of WAYS.
    """
    try:
        number, uuid = filters.identity(text)
    except FilterError:
        number = uuid = None
    if number is not None or uuid is not None:
        exact = messages.search(conn, Filters(id=number, message_id=uuid), 1)
        if exact:
            return [("id", row) for row in exact]
    found: dict[int, tuple[str, Row]] = {}
    for name, way in WAYS.items():
        try:
            value = filters.key(text) if name == "key" else text
        except FilterError:
            continue
        for row in messages.search(conn, Filters(**{name: value}), MOST_FOUND):  # type: ignore[arg-type]
            found.setdefault(row["id"], (way, row))
    return [found[id_] for id_ in sorted(found, reverse=True)]


def newest(conn: psycopg.Connection[Any], status: str | None, topic: str | None) -> list[Row]:
    """Return the newest messages, or those of a status or a topic."""
    return messages.search(conn, Filters(status=status, topic=topic), MOST_FOUND)
