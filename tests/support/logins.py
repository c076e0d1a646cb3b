"""Database users for tests, each a member of one role of the outbox; dropped with the test."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.support.plain_inserts import Connection


class Logins:
    """Makes users who are members of one of the outbox's roles."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._made: list[str] = []
        self.roles: list[str] = []
        """Roles without login that a test has made."""

    def make(self, role: str) -> str:
        """Return a DSN of a new user with this role only."""
        name, password = f"test_{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            admin.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                    sql.Identifier(name), sql.Literal(password), sql.Identifier(role)
                )
            )
        self._made.append(name)
        return psycopg.conninfo.make_conninfo(self.dsn, user=name, password=password)

    def connect(self, role: str, *, behind: bool = False) -> Connection:
        """Connect as a new user with this role, in autocommit; `behind` SET ROLE, from a superuser's login."""
        dsn = self.make(role)
        if not behind:
            return psycopg.connect(dsn, autocommit=True)
        conn = psycopg.connect(self.dsn, autocommit=True)
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(self._made[-1])))
        return conn

    @property
    def newest(self) -> str:
        """The name of the user that was made last."""
        return self._made[-1]

    def drop(self) -> None:
        """Remove the users again: roles belong to the whole cluster."""
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            for name in [*self._made, *self.roles]:
                admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def logins(database: str) -> Iterator[Logins]:
    """Users of the test's database."""
    made = Logins(database)
    yield made
    made.drop()
