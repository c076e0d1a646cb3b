"""The keys of encrypted bodies: list them, destroy those of a subject, renew them, wrap them by another master key.

Each is one statement, or one for each key. When the process dies between any two lines, what has committed stays:

- `destroy`: all keys of the subject, or none. Repeated, it destroys what was made meanwhile.
- `rewrap`: some keys have the new master key and the others the old one; both are readable where both master keys are
  configured, and repeating the command goes on. A key that is destroyed between its page and its update is left alone:
  the update compares what it replaces, so it brings no destroyed key back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError

if TYPE_CHECKING:
    from outbox.codecs.master_keys import MasterKeys

STATEMENTS = Statements("outbox_relay/operations/subject_keys.sql")
REWRAPPED_AT_ONCE = 500


@dataclass(frozen=True)
class SubjectKey:
    """A row of `outbox.subject_key`, without its wrapped bytes."""

    id: UUID
    subject: str | None
    master_id: str | None
    created_at: datetime
    retired_at: datetime | None
    destroyed_at: datetime | None
    destroyed_by: str | None

    @property
    def state(self) -> str:
        """What it is good for."""
        if self.destroyed_at is not None:
            return "destroyed"
        return "current" if self.retired_at is None else "retired"


def of_subject(conn: psycopg.Connection[Any], subject: str) -> list[SubjectKey]:
    """Return the keys of a subject that are not destroyed."""
    return _keys(conn, "of_subject", {"subject": subject})


def by_id(conn: psycopg.Connection[Any], ids: Sequence[UUID]) -> list[SubjectKey]:
    """Return keys by their ids."""
    return _keys(conn, "by_id", {"ids": list(ids)})


def latest(conn: psycopg.Connection[Any], limit: int) -> list[SubjectKey]:
    """Return the keys that were made last."""
    return _keys(conn, "latest", {"limit": limit})


def destroy(conn: psycopg.Connection[Any], subject: str) -> list[SubjectKey]:
    """Destroy all keys of a subject; return them as they are now. Needs the role outbox_operator."""
    return by_id(conn, _ids(conn, "destroy", subject))


def renew(conn: psycopg.Connection[Any], subject: str) -> list[SubjectKey]:
    """Let the next body of a subject get a new key; return the key that is retired by that, if there is one."""
    return by_id(conn, _ids(conn, "retire", subject))


def masters(conn: psycopg.Connection[Any]) -> dict[str, int]:
    """Return how many keys each master key has wrapped."""
    return dict(conn.execute(STATEMENTS["masters"]).fetchall())


def rewrap(conn: psycopg.Connection[Any], master: MasterKeys) -> int:
    """Wrap all keys by the current master key; return how many were wrapped again.

    Args:
        conn: an autocommit connection with the role outbox_operator.
        master: the new master key first, and those that wrapped the keys.

    Raises:
        OperatorError: a master key is missing or another one; what was wrapped again before stays.
    """
    from outbox.codecs.errors import MasterKeyError  # noqa: PLC0415  (its package needs the extra `encryption`)

    done = 0
    for page in _pages(conn, master.current):
        for key_id, old, master_id in page:
            try:
                wrapped = master.wrap(master.unwrap(master_id, old, key_id.bytes), key_id.bytes)
            except MasterKeyError as error:
                raise OperatorError(
                    f"key {key_id} is left as it is: {error}; {done} were wrapped again"
                ) from None
            values = {
                "id": key_id,
                "old": old,
                "master_id": master_id,
                "wrapped": wrapped,
                "current": master.current,
            }
            done += conn.execute(STATEMENTS["rewrap"], values).rowcount
    return done


def _pages(conn: psycopg.Connection[Any], current: str) -> Iterator[list[tuple[UUID, bytes, str]]]:
    after_master, after_id = "", UUID(int=0)
    while True:
        values = {
            "current": current,
            "after_master": after_master,
            "after_id": after_id,
            "limit": REWRAPPED_AT_ONCE,
        }
        page = conn.execute(STATEMENTS["wrapped_by_another"], values).fetchall()
        if not page:
            return
        yield page
        after_id, after_master = page[-1][0], page[-1][2]


def _ids(conn: psycopg.Connection[Any], statement: str, subject: str) -> list[UUID]:
    return [key_id for (key_id,) in conn.execute(STATEMENTS[statement], {"subject": subject}).fetchall()]


def _keys(conn: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> list[SubjectKey]:
    with conn.cursor(row_factory=class_row(SubjectKey)) as cursor:
        return cursor.execute(STATEMENTS[statement], values).fetchall()
