"""How the finder's statements are executed: polls, and lists of large differences.

A poll is prepared once for each kind, with all values bound but those of the snapshot. A list is made once and taken
in parts.

PostgreSQL keeps its ids in position order in a cursor WITH HOLD: it reads the difference once, when the list is
opened, writes the ids to a temporary file, some 30 bytes each, and holds neither a snapshot nor a lock afterwards. So
the work for a backlog is linear in its size, and the relay's memory does not depend on it. (The sort takes a temporary
file of about twice that, until the list is open.)

Schedules. The connection is lost: the list goes with it and with the session; the next one opens another from the
progress that is recorded, for what is left. A partition is dropped after the list was made: its ids are no longer
found, as those of messages that were cancelled. While it is made: DROP waits for the statement. A listed message is
released, retried or repaired: it has a new xid and belongs to a later difference; the page leaves it out. Its group
stops or is put together again: the session closes the list (`Reader.close_lists`).
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.adapt import Transformer
from psycopg.pq import Format
from psycopg.pq.abc import PGresult

from outbox.statements import Statements
from outbox_relay.publisher.prepared import Call, Numbered, PreparedStatements, Rider
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")

AT_ONCE = 50_000
"""Ids that are taken from the list together: 400 kB, and ten times that while they arrive."""

_numbers = itertools.count(1)
KEPT = 50
"""Polls that stay prepared: groups of lanes, and topics that are read apart, come and go."""
FOUND, NEWEST, SNAPSHOT, TOPICS = 0, 1, 3, 12
"""Columns of the header row; see "poll" in finder.sql. The last is whether it needs no barrier."""
_TRUE = b"\x01"


class _Kind(NamedTuple):
    """One kind of poll: the statement, its values, and the places of those of the snapshot."""

    statement: Numbered
    values: list[bytes | None]
    xmax: int
    xip: int


@dataclass(slots=True)
class Poll:
    """What one poll found: the new snapshot, and the rows of the difference from the first on.

    `more`: these are not all of them. A difference of more than a page comes without rows: the rows that were found
    are any of it, not the first. `found` then counts it by hash of the topic.
    """

    snapshot: Snapshot
    newest: int
    rows: list[tuple[Any, ...]]
    more: bool
    found: dict[int, int]
    needs_no_barrier: bool
    """Whether another statement was committed right behind it, in the same round trip, or it found its rows flushed and
    the lanes ours."""


class Polls:
    """The polls of one finder, by a key that the finder chooses."""

    def __init__(self, conn: psycopg.Connection[Any], statements: PreparedStatements) -> None:
        self._conn = conn
        self._statements = statements
        self._loading = Transformer.from_context(conn)
        self._kinds: dict[Hashable, _Kind] = {}
        self._snapshot = b"", BEGINNING
        """The last snapshot that was read, as text and as a value: while nothing ends, it stays the same."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kinds

    def add(self, key: Hashable, statement: Numbered, values: Mapping[str, Any]) -> None:
        """Add a kind of poll; it is prepared when it is executed first."""
        if len(self._kinds) >= KEPT:
            self.forget()
        names = statement.names
        places = names.index("xmax"), names.index("xip")
        self._kinds[key] = _Kind(statement, statement.bind(values), *places)

    def forget(self) -> None:
        """Forget all kinds."""
        unused = self._statements.forget({kind.statement for kind in self._kinds.values()})
        self._kinds = {}
        if not unused:
            return
        # The driver deallocates all of a session when it rolls a transaction back.
        names = {"names": [name.decode() for name in unused]}
        for (name,) in self._conn.execute(STATEMENTS["still_prepared"], names).fetchall():
            self._conn.execute(sql.SQL(STATEMENTS["forget"]).format(name=sql.Identifier(name)))

    def run(self, key: Hashable, previous: Snapshot, rider: Rider | None) -> Poll:
        """Poll for what `previous` did not see, with another statement behind it if there is one that has not been."""
        statement, values, xmax, xip = self._kinds[key]
        values[xmax], values[xip] = b"%d" % previous.xmax, previous.xip_array.encode()
        call = Call(statement, values)
        carried = rider if rider is not None and rider.result is None else None
        result = self._statements.run(call) if carried is None else self._statements.run_with(call, carried)
        rows: list[tuple[Any, ...]] = []
        topics: dict[int, int] = {}
        if result.ntuples > 1:
            self._loading.set_pgresult(result, format=Format.BINARY)
            rows = self._loading.load_rows(1, result.ntuples, tuple)
        elif counts := result.get_value(0, TOPICS):
            topics = dict(_pair(each) for each in counts.split())
        snapshot = self._snapshot_of(result.get_value(0, SNAPSHOT) or b"")
        is_secured = result.get_value(0, result.nfields - 1) == _TRUE
        more = _number(result, FOUND) > len(rows)
        needs_no_barrier = is_secured or (carried is not None and carried.is_behind)
        return Poll(snapshot, _number(result, NEWEST), rows, more, topics, needs_no_barrier)

    def _snapshot_of(self, text: bytes) -> Snapshot:
        if text != self._snapshot[0]:
            self._snapshot = text, Snapshot.parse(text.decode())
        return self._snapshot[1]


def _number(result: PGresult, column: int) -> int:
    return int.from_bytes(result.get_value(0, column) or b"", "big", signed=True)


def _pair(text: bytes) -> tuple[int, int]:
    hash_, _, rows = text.partition(b":")
    return int(hash_), int(rows)


class Listing:
    """Ids of a difference in position order, beyond what was taken."""

    def __init__(
        self, cursor: psycopg.Cursor[Any], statement: sql.SQL, values: dict[str, Any], **parts: Any
    ) -> None:
        """Open the list: run a statement of finder.sql that declares the cursor `{name}`.

        Raises:
            psycopg.errors.UndefinedTable: a partition that is named has been dropped.
        """
        self._cursor = cursor
        self._name = sql.Identifier(f"outbox_backlog_{next(_numbers)}")
        self.is_open = False
        cursor.execute(statement.format(name=self._name, **parts), values, prepare=False)
        self.is_open = True

    def take(self) -> array[int]:
        """Return the next ids; the list closes when these are the last."""
        fetch = sql.SQL(STATEMENTS["next_of_list"]).format(name=self._name, count=sql.Literal(AT_ONCE))
        ids = array("q", (row[0] for row in self._cursor.execute(fetch, prepare=False)))
        if len(ids) < AT_ONCE:
            self.close()
        return ids

    def close(self) -> None:
        """Give the list up; once is enough."""
        if self.is_open:
            self.is_open = False
            self._cursor.execute(sql.SQL(STATEMENTS["close_list"]).format(name=self._name), prepare=False)
