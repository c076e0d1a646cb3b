"""Whether the database's schema is one that this version of the software works with.

A schema is brought first, and processes are replaced one after the other. So a process of the version before connects
again to the newer schema, and is started again on it: it goes on if that schema states that it may (ADR 22).

The revision is written here instead of being asked of alembic, which would cost the relay 30 MB of memory and
each command 0.3 s; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from outbox.extras import install_line
from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/database/schema.sql")
REVISION = "0004"
UPGRADE_SOFTWARE = install_line("relay", upgrade=True)


class SchemaError(OperatorError):
    """The schema is missing, older, or too new; the text states what to run.

    `is_newer`: no upgrade of the database repairs it.
    """

    def __init__(self, text: str, *, is_newer: bool = False) -> None:
        super().__init__(text)
        self.is_newer = is_newer


class Found(NamedTuple):
    """The schema of a database."""

    revision: str | None
    """None: the database has no outbox."""
    oldest_software: str | None
    """The oldest revision whose software works with it."""

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of the software made it."""
        return self.revision is not None and self.revision > REVISION

    @property
    def admits_this_version(self) -> bool:
        """Whether this version works with it. Revisions are numbers of four digits: they compare as text."""
        if not self.is_newer:
            return self.revision == REVISION
        return self.oldest_software is not None and self.oldest_software <= REVISION


def find(conn: psycopg.Connection[Any]) -> Found:
    """Read which schema a database has.

    Works inside or outside a transaction, and as every role of the outbox.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(STATEMENTS["exists"]).fetchone()
        if row is None or not row[0]:
            return Found(None, None)
        row = cursor.execute(STATEMENTS["revision"]).fetchone()
        return Found(None, None) if row is None else Found(*row)


def revision(conn: psycopg.Connection[Any]) -> str | None:
    """Return the database's revision, or None when it has no outbox."""
    return find(conn).revision


def require_current(conn: psycopg.Connection[Any]) -> Found:
    """Refuse to work on a schema that is missing, older, or newer without admitting this version.

    Returns:
        The schema: of this version, or a newer one that admits it.

    Raises:
        SchemaError: with the command that repairs it.
    """
    schema = find(conn)
    if schema.admits_this_version:
        return schema
    found = schema.revision
    where = f'database "{conn.info.dbname}"'
    if found is None:
        with conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(STATEMENTS["another_program"]).fetchone()
        if row is not None and row[0]:
            raise SchemaError(
                f'{where} has a schema "outbox" of another program: it has no table schema_version of this one, and '
                f"has {row[0]}\nuse another database, or rename that schema: ALTER SCHEMA outbox RENAME TO …"
            )
        raise SchemaError(f"{where} has no outbox schema\nrun: outbox db upgrade")
    if found < REVISION:
        raise SchemaError(
            f"{where} has the outbox schema {found}, this version needs {REVISION}\nrun: outbox db upgrade"
        )
    raise SchemaError(
        f"{where} has the outbox schema {found}, which is newer than the {REVISION} that this version knows and "
        f"works with {schema.oldest_software or found} or newer\n"
        f"upgrade the software: {UPGRADE_SOFTWARE}",
        is_newer=True,
    )
