"""The connection of the keeper, and the registration of its member on the server that it leads to."""

from __future__ import annotations

import logging
from typing import Any, NoReturn, TypeVar

import psycopg

from outbox.backoff import Backoff
from outbox.drivers.psycopg_sync import run
from outbox.errors import ConsumerFailedError
from outbox.inbox import membership
from outbox.inbox.assignments import Assignments
from outbox.inbox.repeats import Repeats
from outbox.inbox.server import CurrentServer, OtherServerError, Server, identify_server
from outbox.inbox.sessions import limit_transactions
from outbox.inbox.settings import Connect, Member
from outbox.inbox.threads import FIRST_PAUSE, LAST_PAUSE
from outbox.sessions import make_own
from outbox.statements import Plan

T = TypeVar("T")
log = logging.getLogger("outbox.inbox")
LIMIT = 15.0
"""Seconds after which PostgreSQL ends a transaction of the keeper, which holds the row of its group."""


class ServerChangedError(Exception):
    """Ends what the keeper was about to do for another server."""


class KeeperSession:
    """The session of the keeper of one member."""

    def __init__(
        self, member: Member, connect: Connect, assignments: Assignments, server: CurrentServer
    ) -> None:
        """Prepare it; nothing is opened.

        Args:
            member: of a group.
            connect: opens a connection.
            assignments: its partitions.
            server: that it works with.
        """
        self._member, self._connect, self._assignments = member, connect, assignments
        self.server = server
        self._conn: psycopg.Connection[Any] | None = None
        self._pauses, self._repeats = Backoff(FIRST_PAUSE, LAST_PAUSE), Repeats()
        self.group = 0
        """The number of the group, once the member is registered."""
        self.stated = 0
        """With how many partitions the member is listed."""

    def begin(self) -> None:
        """Connect for the first time."""
        self._conn, server = self._led_to()
        self.server.accept(server)

    def run(self, plan: Plan[T]) -> T:
        """Run a plan in a transaction of its own, on the server that is accepted.

        Raises:
            OtherServerError: a dump was read in under the session; the next connection finds another server.
            ServerChangedError: A new connection leads to another server; all partitions are closed.
        """
        conn = self.open()
        with conn.transaction():
            found = identify_server(conn)
            if found == self.server.accepted:
                return run(conn, plan)
        self.drop()
        raise OtherServerError(f"the session leads to {found} now, and led to {self.server.accepted}")

    def open(self) -> psycopg.Connection[Any]:
        """Return the connection, or a new one.

        Raises:
            ServerChangedError: The new one leads to another server; all partitions are closed.
        """
        if self._conn is None or self._conn.closed:
            conn, server = self._led_to()
            if server != self.server.accepted:
                self._take_over(conn, server)
            self._conn = conn
        return self._conn

    def drop(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def pause(self, error: psycopg.Error) -> float:
        """Close the connection, and return the seconds until the next try."""
        self.drop()
        log.log(
            self._repeats.level(type(error).__name__),
            "group %s stores no positions until PostgreSQL is back: %s",
            self._member.group,
            error,
        )
        return min(self._pauses.next(), 5.0)

    def succeeded(self) -> None:
        """Let the next pause be the first one again."""
        self._pauses.reset()

    def registration(self) -> Plan[int]:
        """List the member; return the number of its group."""
        with self._assignments as partitions:
            self.stated, full = len(partitions.places), partitions.full_keys.count
        return membership.register(
            self._member.group,
            self._member.name,
            self._member.subscription_json,
            orderly=self._member.settings.orderly,
            partitions=self.stated,
            full_keys=full,
        )

    def again(self) -> Plan[None]:
        """Register the member again; raise if its group was deleted meanwhile."""
        membership.require_same(self._member.group, self.group, (yield from self.registration()))

    def listed(self) -> Plan[None]:
        """Register the member again, unless it is listed.

        A member that stood still for a minute may have skipped what members with another subscription handle. It is
        registered again first, and refused if there are any. If it stands still after this check, PostgreSQL ends its
        transaction (see LIMIT) before members that differ can join.
        """
        if not (yield from membership.is_listed(self.group, self._member.name)):
            yield from self.again()

    def _led_to(self) -> tuple[psycopg.Connection[Any], Server]:
        """Connect; return the connection and the server that it leads to."""
        conn = self._connect()
        try:
            make_own(conn)
            limit_transactions(conn, LIMIT)
            with conn.transaction():
                return conn, identify_server(conn)
        except BaseException:
            conn.close()
            raise

    def _take_over(self, conn: psycopg.Connection[Any], server: Server) -> NoReturn:
        """Go on with another server; see `server` for the order."""
        before = self.server.accepted
        try:
            with conn.transaction():
                group = run(conn, self.registration())
        except BaseException:
            conn.close()
            raise
        self._conn = conn
        if group != self.group:
            raise ConsumerFailedError(
                f"group {self._member.group!r}: it has number {group} on {server}, and had {self.group} on {before}, "
                "so rows of this member would be another group's; start the member again"
            )
        with self._assignments as partitions:
            partitions.restart()
        self.server.accept(server)
        log.warning(
            "group %s: %s took over from %s; all partitions are read again from the positions that it has",
            self._member.group,
            server,
            before,
        )
        raise ServerChangedError
