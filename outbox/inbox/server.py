"""Which server of PostgreSQL a member works with, so that it notices when another one takes over.

A standby that lagged lacks what was committed last: effects with their rows of the inbox, and positions. What a
member knows of its partitions is then wrong: a position that it stores would pass messages whose effects are lost. So
it closes all partitions and reads them again from the positions that the new server has; the inbox there refuses what
it has not lost. The order is fixed, and each line may be the last one of a process, because all of it is in memory:

1. A connection leads to another server. If it is a listener's, it is closed before anything runs on it, and the keeper
   makes a new one.
2. The keeper finds that its own connection leads to another server, and registers the member there.
3. The keeper closes all partitions. From here on no message of before is current, and none of its offsets is stored.
4. The new server is accepted: listeners may connect to it. They run nothing that is not current.
5. The thread that polls Kafka asks for all partitions that it reads where to begin.

A listener that finds its connection before 4 is refused; one that finds it after 4 finds its message not current.
"""

from __future__ import annotations

import threading
from datetime import date
from typing import NamedTuple

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.statements import Plan, Statement, load

SQL = load("inbox_groups.sql")


class Server(NamedTuple):
    """A server by its cluster, and its timeline, which changes when a standby is promoted."""

    system_identifier: int
    timeline: int


class OtherServerError(psycopg.OperationalError):
    """A connection leads to a server that the member has not accepted yet."""


class CurrentServer:
    """The server that a member has accepted, shared by its threads."""

    def __init__(self) -> None:
        self.accepted: Server | None = None
        self.doubted = threading.Event()
        """Set by a thread that was led to another server."""
        self.days: set[date] = set()
        """Days of birth whose partitions of the inbox were made on this server."""

    def accept(self, server: Server) -> None:
        """Work with this server from now on."""
        self.accepted = server
        self.days.clear()

    def require(self, conn: psycopg.Connection[object]) -> Server:
        """Refuse a connection that leads to another server; return the server.

        Raises:
            OtherServerError: with both servers; the keeper is asked to check.
        """
        found = run(conn, identify_server())
        conn.commit()
        if found != self.accepted:
            self.doubted.set()
            raise OtherServerError(f"the connection leads to {found}, the member works with {self.accepted}")
        return found


def identify_server() -> Plan[Server]:
    """Return the server that a connection leads to."""
    rows = yield Statement(SQL["server"])
    return Server(*rows[0])
