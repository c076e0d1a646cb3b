"""Claiming half messages that are due, so that one checker at a time asks about each.

A claim is a short transaction. It moves the row's due time to the end of a lease, so one timestamp is schedule and
lease in one: a claim that is never settled is due again by itself.

Schedules:

- The process dies, or is killed, before the commit: nothing was claimed. After it: due again when the lease has passed.
- It is stopped before the commit, holding locks on half messages: the server ends its session after 5 s. After the
  commit: the next checker has another claim, and the replies to this one are not settled.
- Two checkers: the second skips the rows that the first has locked, and does not find those that it has claimed.
- A local transaction holds the half message: postponed by a second, not asked, not counted, for as long as it holds it.
  It begins right after our check: it is asked about; an answer UNKNOWN counts one check of fifteen, and any other waits
  until the lock is gone.
- The producer decides before we lock: the row goes. After it: see `settling`.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from outbox.checking.group_settings import LEASE_SLACK, GroupSettings
from outbox.checking.transaction import SQL
from outbox.records import MessageView
from outbox.statements import Plan, Rows, Statement

LOCKED_PAUSE = 1.0
"""Seconds after which a locked half message is checked again."""
QUEUE_SECONDS = 2.0
"""Seconds that a claimed half message may wait for a worker; the lease is this much longer than the check."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of bodies that one claim reads; one message at least."""


class Claimed(NamedTuple):
    """What a claim found; `claim` is the token to settle with, and no other claim's."""

    claim: str
    views: list[MessageView]
    over: list[int]
    """Half messages whose checks are used up: see `expire`."""
    locked: int
    decided: int
    more: bool
    """Whether more may be due."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """Half messages (ids, checks used up) whose headers cannot be read: claimed, and to be settled as failed checks.

    No listener is asked about them, because one that decides by a header would take it for missing. So each fails
    alone, uses up its checks, and becomes EXHAUSTED: an operator decides.
    """


def claim(group: GroupSettings, name: str, limit: int, due_by: str = "infinity") -> Plan[Claimed]:
    """Claim at most `limit` half messages of a group for `name`, of those that were due at `due_by`."""
    # Random, because names repeat: pid 1 in containers of one host name, a name= given twice, a forked process.
    # With the same token, the late answer of one claim would settle the other's.
    token = f"{name}#{secrets.token_hex(8)}"
    rows: Rows = yield Statement(
        SQL["claim"],
        (
            group.name,
            str(limit),
            due_by,
            token,
            repr(group.check_timeout + QUEUE_SECONDS + LEASE_SLACK),
            repr(LOCKED_PAUSE),
            str(group.max_checks),
            str(MOST_BYTES),
        ),
    )
    kinds = [row[1] for row in rows]
    views, unreadable = [], []
    for row in rows:
        if row[1] == "ask":
            try:
                views.append(claimed_view(group.name, row))
            except (ValueError, RecursionError):
                unreadable.append((row[0], row[-1]))
    return Claimed(
        token,
        views,
        [row[0] for row in rows if row[1] == "over"],
        kinds.count("locked"),
        kinds.count("decided"),
        len(rows) == limit or "later" in kinds,
        tuple(unreadable),
    )


def claimed_view(group: str, row: tuple[Any, ...]) -> MessageView:
    """Read a row of "claim" that is asked about.

    Raises:
        ValueError, RecursionError: its headers cannot be read.
    """
    id, _, message_id, topic, born_at, key, body, headers, order_key, tags, index_keys, *rest = row
    transaction_id, checker, biz_type, biz_id, deliver_at, traceparent, checks = rest
    return MessageView(
        id=id,
        message_id=message_id,
        topic=topic,
        producer_group=group,
        born_at=born_at,
        key=key,
        body=body,
        headers=_headers(headers),
        order_key=order_key,
        tags=tuple(tags),
        index_keys=tuple(index_keys),
        transaction_id=transaction_id,
        checker=checker,
        biz_type=biz_type,
        biz_id=biz_id,
        deliver_at=deliver_at,
        traceparent=traceparent,
        checks=checks,
    )


def _headers(text: str | None) -> dict[str, str | None]:
    """Read the column's JSON; a ValueError where the table should have refused it."""
    headers = {} if text is None else json.loads(text)
    if not isinstance(headers, dict) or any(not isinstance(value, str | None) for value in headers.values()):
        raise ValueError("headers are not texts by name")
    return headers
