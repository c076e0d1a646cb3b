"""Reads which relay leads and which stand by, and asks one of them to drain: to give its lanes to a standby.

What is asked of a relay is a column of its lease. A relay whose session is lost between the request and its next read
of that column joins again without knowing of it; so who waits for a drain asks its new session, too. One that knows of
the request keeps to it in all its sessions, until the request is taken back or the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.publisher.lease import LOCK_WAIT_S, lock_holders
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import printable

STATEMENTS = Statements("outbox_relay/operations/relays.sql")


@dataclass(frozen=True)
class LeasedRelay:
    """A relay with a lease; `owner` is its process by host, process id and a random part."""

    owner: str
    epoch: int
    lanes: list[int]
    version: int
    shard: str | None
    """The shard whose lanes it may lead; None: it is of a version that divides the lanes among all relays."""
    is_draining: bool
    lacks_kafka: bool
    """Whether no broker replies to it, while something waits for one."""
    joined_at: datetime
    lease_seconds: float
    """How much longer its lease lasts; negative: so long ago it ended."""
    has_session: bool

    @property
    def lives(self) -> bool:
        """Whether other relays leave its lanes alone."""
        return self.has_session and self.lease_seconds > 0

    @property
    def condition(self) -> str:
        """Name what it does in a word or two."""
        if not self.lives:
            return "lease ended" if self.has_session else "session gone"
        if self.is_draining:
            return "draining" if self.lanes else "drained"
        if self.lacks_kafka:
            return "without Kafka"
        return "leads" if self.lanes else "stands by"


class NoSuchRelayError(OperatorError):
    """The name fits no living relay, or several."""


class LeasesLockedError(OperatorError):
    """Another transaction holds the leases, so nothing could be asked of a relay."""


def everything(conn: psycopg.Connection[Any]) -> list[LeasedRelay]:
    """Return all relays with a lease, the oldest first; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(LeasedRelay)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


def choose(relays: Iterable[LeasedRelay], name: str | None) -> list[LeasedRelay]:
    """Return the living relay of this name, or all living ones where `name` is None.

    Args:
        relays: those that have a lease.
        name: the whole name, or its beginning up to a colon, such as HOST:PID, where one relay alone has it.

    Raises:
        NoSuchRelayError: the name fits no living relay, or several.
    """
    living = [relay for relay in relays if relay.lives]
    if not living:
        raise NoSuchRelayError("no relay runs; start one: outbox relay run")
    if name is None:
        return living
    exact = [relay for relay in living if relay.owner == name]
    found = exact or [relay for relay in living if relay.owner.startswith(name.rstrip(":") + ":")]
    if len({relay.owner for relay in found}) == 1:
        return found
    names = ", ".join(printable(relay.owner) for relay in found or living)
    if found:
        raise NoSuchRelayError(f"{name!r} fits several relays: {names}; give one whole name")
    raise NoSuchRelayError(f"no relay {name!r} runs; running: {names}\nlist them: outbox relay ls")


def ask(conn: psycopg.Connection[Any], epochs: Sequence[int], *, is_draining: bool) -> None:
    """Ask relays to give their lanes to others, or to lead again when none does; needs the role outbox_operator.

    Args:
        conn: an autocommit connection that is in no transaction.
        epochs: those of the relays' sessions.
        is_draining: whether they are to drain.

    Raises:
        LeasesLockedError: another transaction holds a lease for longer than a second; nothing is asked.
    """
    try:
        with conn.transaction():
            conn.execute(LANE_STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
            conn.execute(STATEMENTS["ask"], {"epochs": list(epochs), "is_draining": is_draining})
    except psycopg.errors.LockNotAvailable:
        raise LeasesLockedError(
            "nothing is asked: another transaction holds outbox.lease; held, as far as can be seen, by: "
            f"{printable(', '.join(lock_holders(conn))) or 'a session that has just ended'}\n"
            "end that transaction (COMMIT, or SELECT pg_terminate_backend(pid)), then run the command again"
        ) from None


class Drain:
    """Relays that were asked to drain; `left()` reads what they still have."""

    def __init__(self, conn: psycopg.Connection[Any], relays: Iterable[LeasedRelay]) -> None:
        """Ask these relays to drain.

        Args:
            conn: an autocommit connection that is in no transaction.
            relays: those to drain.

        Raises:
            LeasesLockedError: another transaction holds a lease; nothing is asked.
        """
        self._conn = conn
        asked = {relay.epoch: relay.owner for relay in relays}
        ask(conn, list(asked), is_draining=True)
        self._asked = asked

    def left(self) -> dict[str, list[int]]:
        """Return the lanes that the relays still have, by name.

        A relay that gave all of them back, or ended, is left out. A session that a relay opened after it was asked is
        asked again.

        Raises:
            LeasesLockedError: another transaction holds the lease of such a session.
        """
        owners = frozenset(self._asked.values())
        living = [relay for relay in everything(self._conn) if relay.lives and relay.owner in owners]
        newer = {relay.epoch: relay.owner for relay in living if relay.epoch not in self._asked}
        unaware = [relay.epoch for relay in living if relay.epoch in newer and not relay.is_draining]
        if unaware:
            ask(self._conn, unaware, is_draining=True)
        self._asked |= newer
        return {relay.owner: relay.lanes for relay in living if relay.lanes or relay.epoch in unaware}
