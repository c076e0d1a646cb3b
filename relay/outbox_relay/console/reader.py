"""The console's sessions at PostgreSQL: a few that read for all open pages, and one for each act."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.database import connections, rights, schema
from outbox_relay.operations.actor import acting_as, actor
from outbox_relay.operations.doctor import STATEMENTS as DOCTOR
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.masking import mask_text

STATEMENTS = Statements("outbox_relay/console/console.sql")
MOST_SESSIONS = 3
"""Sessions that read at the same time; who comes later waits for one."""
OPERATOR = "outbox_operator"


class LacksRightError(OperatorError):
    """The console's login may not do it; the text names the role that may."""


@dataclass(frozen=True)
class Login:
    """What the console's login at PostgreSQL is."""

    user: str
    roles: Sequence[str]
    is_superuser: bool

    @property
    def may_act(self) -> bool:
        """Whether the database lets it do what operators do."""
        return self.is_superuser or OPERATOR in self.roles


class Reader:
    """Lends sessions of one database.

    Args:
        dsn: of a user with the role outbox_reader at least.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.known_login: Login | None = None
        """The login, once the database has described it."""
        self._places = threading.BoundedSemaphore(MOST_SESSIONS)
        self._idle: list[connections.Connection] = []
        self._is_closed = False
        self.loans = 0
        """How often a session was lent."""

    @property
    def place(self) -> str:
        """The database, as a person names it."""
        return connections.place(self.dsn)

    @property
    def login(self) -> Login:
        """The login, as the database described it to the first session.

        Raises:
            DatabaseUnreachableError: there was none yet, and PostgreSQL does not reply.
        """
        while self.known_login is None:
            with self.reading():
                pass
        return self.known_login

    @contextmanager
    def reading(self, role: str = "outbox_reader") -> Iterator[connections.Connection]:
        """Lend a session that only reads; one that was lost is closed, and the next loan opens another.

        Args:
            role: that may read it.

        Raises:
            DatabaseUnreachableError: PostgreSQL does not reply.
            LacksRightError: the login may not read it.
        """
        with self._places, rights.needing(role, self.dsn), _stating_rights():
            self.loans += 1
            conn = self._idle.pop() if self._idle else self._open()
            conn.isolation_level = None
            try:
                yield conn
            except psycopg.OperationalError:
                conn.close()
                raise
            finally:
                if not (conn.closed or self._idle or self._is_closed):
                    self._idle.append(conn)
                else:
                    conn.close()

    @contextmanager
    def acting(self, name: str) -> Iterator[connections.Connection]:
        """Lend a session in which an operator acts, and the audit names them.

        Raises:
            DatabaseUnreachableError: PostgreSQL does not reply.
            LacksRightError: the login may not do it.
        """
        with (
            rights.needing(OPERATOR, self.dsn),
            _stating_rights(),
            acting_as(name),
            connections.connect(self.dsn, application_name="outbox console") as conn,
        ):
            schema.require_current(conn)
            conn.execute(STATEMENTS["acting"], {"actor": actor()})
            yield conn

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> connections.Connection:
        conn = connections.connect(self.dsn, application_name="outbox console")
        try:
            schema.require_current(conn)
            with conn.cursor(row_factory=dict_row) as cursor:
                found = cursor.execute(DOCTOR["session"]).fetchone() or {}
            self.known_login = Login(found["who"], found["roles"], found["superuser"])
            conn.execute(STATEMENTS["reading"])
        except BaseException:
            conn.close()
            raise
        return conn


@contextmanager
def _stating_rights() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        repair = rights.repair(error)
        raise LacksRightError("\n".join([f"PostgreSQL: {error}", *([repair] if repair else [])])) from error


def explained(error: Exception) -> str | None:
    """Return what a person can do about an error of the database or of an operation; None: it is a defect."""
    if isinstance(error, OperatorError):
        return str(error)
    if isinstance(error, psycopg.Error):
        return f"PostgreSQL: {mask_text(str(error).strip())}"
    return None


def rows(conn: psycopg.Connection[Any], name: str, **values: Any) -> list[dict[str, Any]]:
    """Return what one of the console's own statements finds."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS[name], values).fetchall()
