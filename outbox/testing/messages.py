"""The messages that were sent, as the table has them, and the half messages among them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outbox.checking.claiming import claimed_view
from outbox.records import MessageView
from outbox.statements import Plan, Statement, load

SQL = load("testing.sql")


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as it is in the table; `state` is COMMITTED, or UNKNOWN for a half message that is undecided."""

    id: int
    message_id: UUID
    topic: str
    key: bytes | None
    body: bytes | None
    headers: Mapping[str, str | None]
    tags: tuple[str, ...]
    index_keys: tuple[str, ...]
    order_key: bytes | None
    state: str
    producer_group: str | None
    deliver_at: datetime | None
    deliver_before: datetime | None


def newest() -> Plan[int]:
    """Find the newest message."""
    [(id_,)] = yield Statement(SQL["newest"])
    return int(id_)


def sent(after: int, topic: str | None) -> Plan[list[SentMessage]]:
    """Read what was sent after a message, of one topic or of all."""
    rows = yield Statement(SQL["sent"], (str(after),))
    found = []
    for id_, message_id, of_topic, key, body, headers, tags, index_keys, *rest in rows:
        if topic is None or of_topic == topic:
            read = {} if headers is None else json.loads(headers)
            lists = tuple(tags or ()), tuple(index_keys or ())
            found.append(SentMessage(id_, message_id, of_topic, key, body, read, *lists, *rest))
    return found


def undecided(after: int) -> Plan[list[MessageView]]:
    """Read the half messages without a decision, as listeners get them."""
    rows = yield Statement(SQL["undecided"], (str(after),))
    return [claimed_view(group, tuple(row)) for group, *row in rows]
