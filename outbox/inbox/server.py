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

A database that was set back by a dump is another one in the same way. It may be under sessions that stay open, so the
keeper asks in each of its transactions.

During a fail-over a connection may lead to a standby before it is promoted. It has no timeline of its own yet, so it is
refused: the thread closes it, pauses and connects again, and its message waits. The keeper is not asked to check:
its own connection may still lead to the primary.
"""

from __future__ import annotations

import threading
from datetime import date
from typing import Any, NamedTuple

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.inbox.sessions import is_infrastructure
from outbox.statements import Plan, Statement, load

SQL = load("inbox_groups.sql")


class Server(NamedTuple):
    """A server and the inbox on it.

    The timeline changes when a standby is promoted, the oids of database and inbox when a dump is read in.
    """

    system_identifier: int
    timeline: int
    database: int
    inbox: int


class OtherServerError(psycopg.OperationalError):
    """A connection leads to a server that the member has not accepted yet, or that it cannot identify."""


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

    def require(self, conn: psycopg.Connection[Any]) -> Server:
        """Refuse a connection that leads to another server; return the server.

        Raises:
            OtherServerError: with both servers, and the keeper is asked to check; or the server cannot be identified.
        """
        found = identify_server(conn)
        conn.commit()
        if found != self.accepted:
            self.doubted.set()
            raise OtherServerError(f"the connection leads to {found}, the member works with {self.accepted}")
        return found


def identify_server(conn: psycopg.Connection[Any]) -> Server:
    """Return the server that a connection leads to.

    Raises:
        OtherServerError: It is a standby, or refuses the question.
        psycopg.Error: The connection was lost, or the server is starting or stopping.
    """
    try:
        return run(conn, _server())
    except psycopg.Error as error:
        if is_infrastructure(error):
            raise
        text = " ".join(str(error).split())
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            raise OtherServerError(
                f"the connection leads to a standby ({text}); a member needs the primary: add "
                "target_session_attrs=read-write to its connection string"
            ) from error
        raise OtherServerError(f"the server cannot be identified: {text}") from error


def _server() -> Plan[Server]:
    rows = yield Statement(SQL["server"])
    return Server(*rows[0])
