"""When lanes may change between relays that deliver at least once and exactly once.

Batches of a shard have two transactional ids, so one relay has all of its lanes, or none. The relay that takes them
fences the former owner by these ids, whatever it does itself then. Nothing fences a relay that delivers at least once:
it is done when it has given the lanes back, and dead when its lease has run out and PostgreSQL has ended its session.
"""

from __future__ import annotations

from typing import Any, Protocol

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.guarantee import Guarantee
from outbox_relay.publisher.shard import Shard
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/lanes.sql")

log = Log("lanes")


class Taker(Protocol):
    """The lease of the relay that takes lanes."""

    lanes: frozenset[int]
    shard: Shard
    delivery: Guarantee
    waits_for: str | None


def may_take(conn: psycopg.Connection[Any], lease: Taker, free: frozenset[int]) -> bool:
    """Return whether lanes that are free, and locked, can be taken."""
    values = {"lanes": array_text(free)}
    is_exact = lease.delivery is Guarantee.EXACTLY_ONCE
    has_batches = is_exact or conn.execute(STATEMENTS["is_exactly_once"], values).fetchone() == (True,)
    if has_batches and free | lease.lanes != lease.shard.lanes:
        return False
    row = conn.execute(STATEMENTS["not_ended"], values).fetchone() if is_exact else None
    other = None if row is None else str(row[0])
    if other is not None and other != lease.waits_for:
        log.warning(
            "waiting for a relay that delivers at least once",
            owner=other,
            repair="stop it, or, if its process is gone, let PostgreSQL end its session",
        )
    lease.waits_for = other
    return other is None
