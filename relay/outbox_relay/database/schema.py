"""Whether the database's schema is the one this version of the software works with.

The revision is written here instead of being asked of alembic, which would cost the relay 30 MB of memory and
each command 0.3 s; a test holds the two together.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/database/schema.sql")
REVISION = "0002"


class SchemaError(OperatorError):
    """The schema is missing, older or newer; the text states what to run.

    `is_newer`: no upgrade of the database repairs it.
    """

    def __init__(self, text: str, *, is_newer: bool = False) -> None:
        super().__init__(text)
        self.is_newer = is_newer


def revision(conn: psycopg.Connection[Any]) -> str | None:
    """Return the database's revision, or None when it has no outbox.

    Works inside or outside a transaction, and as every role of the outbox.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(STATEMENTS["exists"]).fetchone()
        if row is None or not row[0]:
            return None
        row = cursor.execute(STATEMENTS["revision"]).fetchone()
        return None if row is None else str(row[0])


def require_current(conn: psycopg.Connection[Any]) -> None:
    """Refuse to work on a schema of another version.

    Revisions are numbers of four digits, so that they compare as text; one that is not known here came from a
    newer version.

    Raises:
        SchemaError: with the command that repairs it.
    """
    found = revision(conn)
    if found == REVISION:
        return
    where = f'database "{conn.info.dbname}"'
    if found is None:
        raise SchemaError(f"{where} has no outbox schema\nrun: outbox db upgrade")
    if found < REVISION:
        raise SchemaError(
            f"{where} has the outbox schema {found}, this version needs {REVISION}\nrun: outbox db upgrade"
        )
    raise SchemaError(
        f"{where} has the outbox schema {found}, newer than the {REVISION} that this version knows\n"
        "upgrade the software: pip install --upgrade 'outbox-kafka[relay]'",
        is_newer=True,
    )
