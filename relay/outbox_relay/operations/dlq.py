"""Dead letters of consumer groups: find them, try them again, discard them.

A dead letter is a row of `outbox.inbox_parked` in state dead; its effect does not exist, unless its listener ended the
transaction, and in an orderly group the later messages of its key wait behind it. The schedules:

- Both act on what an operator was shown: a letter by its id and the time of its last failure. Between the list and the
  operator's reply another operator may redrive it, and it may die again of something else; it is then left alone.
- Redrive is one statement for a thousand letters. A process that dies before its commit has changed none of them; after
  it, a running member of the group finds the retries. Two operators at once: the second finds the row in another state.
- Discard takes the row out and lets the next message of its key follow, in one transaction, with the locks in the order
  of a retry: the row, then the held key. A member that parks a message behind the key waits for that transaction.
- An error ends both: what was committed before it stays, the letters after it are unchanged. Those in hand are
  unchanged, too, unless the connection was lost: then their commit may have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

from outbox.drivers import psycopg_sync
from outbox.inbox import plans
from outbox.statements import Statements
from outbox_relay.operations.messages import Row

STATEMENTS = Statements("outbox_relay/operations/dlq.sql")
LETTERS_AT_ONCE = 1000
MOST_PASSES = 100


class ListedLetter(NamedTuple):
    """A dead letter as it was listed; one that has failed again since then is another choice."""

    id: int
    failed_at: datetime | None


@dataclass(frozen=True)
class DeadLetterFilter:
    """Which dead letters are meant; None: any. `failure` is a part of the failure's text."""

    ids: Sequence[int] | None = None
    group: str | None = None
    topic: str | None = None
    failure: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it means all dead letters of all groups."""
        return self == DeadLetterFilter()


def pages(
    conn: psycopg.Connection[Any], which: DeadLetterFilter, limit: int | None = None, *, after: int = 0
) -> Iterator[list[Row]]:
    """Yield the dead letters behind an id that fit, the oldest first, page by page; at most `limit` of them."""
    left = limit
    values = _values(which)
    values["ids"] = None if which.ids is None else list(which.ids)
    while left is None or left > 0:
        size = LETTERS_AT_ONCE if left is None else min(LETTERS_AT_ONCE, left)
        with conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(STATEMENTS["ls"], {**values, "after": after, "limit": size}).fetchall()
        if not rows:
            return
        yield rows
        after = rows[-1]["id"]
        left = None if left is None else left - len(rows)


def retrying(conn: psycopg.Connection[Any], which: DeadLetterFilter, limit: int) -> list[Row]:
    """Return messages that failed, fit, and are tried again, the next try first; at most `limit` of them."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["retrying"], {**_values(which), "limit": limit}).fetchall()


def summary(conn: psycopg.Connection[Any], group: str | None = None) -> list[Row]:
    """Return the dead letters by group and failure, the most frequent first."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["summary"], {"group": group}).fetchall()


def show(conn: psycopg.Connection[Any], id_: int) -> Row | None:
    """Return one parked message without body and headers; None: no message has this id."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["show"], {"id": id_}).fetchone()


def contents(conn: psycopg.Connection[Any], ids: Sequence[int]) -> dict[int, Row]:
    """Return body and headers of parked messages by their ids.

    Raises:
        psycopg.errors.InsufficientPrivilege: the user has not the role outbox_consumer.
    """
    found = {}
    for id_, body, names, values in conn.execute(STATEMENTS["contents"], {"ids": list(ids)}).fetchall():
        found[id_] = {"headers": [list(pair) for pair in zip(names, values, strict=True)], "body": body}
    return found


def may_be_applied(row: Row) -> bool:
    """Return whether a dead letter's effect, or a part of it, may exist."""
    return str(row["failure"] or "").startswith((plans.COMMITTED, plans.TOO_OLD))


@dataclass
class Changes:
    """What became of dead letters that were chosen, by their ids; `done` and the rest are all of them."""

    done: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """They were not as they were listed, and are left alone."""
    unchanged: list[int] = field(default_factory=list)
    """They come after the error."""
    unknown: list[int] = field(default_factory=list)
    """The connection was lost, or the operator ended the command, in their transaction: it may be committed."""
    error: psycopg.Error | KeyboardInterrupt | None = None
    """What ended it before the last letter."""


def redrive(conn: psycopg.Connection[Any], letters: Sequence[ListedLetter]) -> Changes:
    """Let the group try these dead letters again now, in transactions of a thousand.

    Args:
        conn: an autocommit connection.
        letters: dead letters.
    """
    return _in_transactions(conn, letters, LETTERS_AT_ONCE, _redrive)


def discard(conn: psycopg.Connection[Any], letters: Sequence[ListedLetter]) -> Changes:
    """Delete these dead letters, each in a transaction of its own.

    Args:
        conn: an autocommit connection.
        letters: dead letters. The message behind one of them becomes the next retry of its key.
    """
    return _in_transactions(conn, letters, 1, _discard)


def hold(conn: psycopg.Connection[Any]) -> list[Row]:
    """Hold keys again that have a parked message and whose row is gone, and let their messages go on; return them.

    Args:
        conn: an autocommit connection. It waits for retries of such keys that run.
    """
    held: list[Row] = []
    with conn.cursor(row_factory=dict_row) as cursor:
        for _ in range(MOST_PASSES):
            held += cursor.execute(STATEMENTS["hold"]).fetchall()
            # A retry that a pass waited for may have made the next message of its key the first one.
            if conn.execute(STATEMENTS["lacks_held_key"]).fetchone() == (False,):
                break
    return held


def _values(which: DeadLetterFilter) -> dict[str, Any]:
    return {name: getattr(which, name) for name in ("group", "topic", "failure", "since", "until")}


def _in_transactions(
    conn: psycopg.Connection[Any],
    letters: Sequence[ListedLetter],
    at_once: int,
    act: Callable[[psycopg.Connection[Any], Sequence[ListedLetter]], list[int]],
) -> Changes:
    changes = Changes()
    for begin in range(0, len(letters), at_once):
        batch = letters[begin : begin + at_once]
        ids = [letter.id for letter in batch]
        try:
            done = act(conn, batch)
        except (psycopg.Error, KeyboardInterrupt) as error:
            changes.error = error
            is_known = not conn.closed and isinstance(error, psycopg.Error)
            (changes.unchanged if is_known else changes.unknown).extend(ids)
            changes.unchanged += [letter.id for letter in letters[begin + at_once :]]
            return changes
        changes.done += done
        changes.changed += sorted(set(ids) - set(done))
    return changes


def _redrive(conn: psycopg.Connection[Any], letters: Sequence[ListedLetter]) -> list[int]:
    values = {"ids": [letter.id for letter in letters], "failed_at": [letter.failed_at for letter in letters]}
    return [id_ for (id_,) in conn.execute(STATEMENTS["redrive"], values).fetchall()]


def _discard(conn: psycopg.Connection[Any], letters: Sequence[ListedLetter]) -> list[int]:
    [letter] = letters
    with conn.transaction():
        row = conn.execute(STATEMENTS["lock_dead"], letter._asdict()).fetchone()
        if row is None:
            return []
        group, topic, order_key = row
        psycopg_sync.run(conn, plans.remove(group, topic, order_key, letter.id))
    return [letter.id]
