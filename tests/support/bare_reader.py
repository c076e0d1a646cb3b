"""A reader on a database, without a relay around it: what it reads, in which order, from which partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from psycopg import sql

from outbox_relay.publisher.finder import ID, PAGE_BYTES, POSITION, WAITING, Finder, RawRow, prepare_session
from outbox_relay.publisher.lane_groups import Group, merge
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.snapshot import Progress
from tests.support.plain_inserts import Connection, connect_as_service

Between = Callable[[int], Any]


class Reading:
    """A reader with one group of all lanes, and what it has read."""

    def __init__(self, database: str, *, page: int = 10, page_bytes: int = PAGE_BYTES) -> None:
        self.conn = connect_as_service(database)
        prepare_session(self.conn)
        self.finder = Finder(self.conn, page=page, page_bytes=page_bytes)
        self.partitions = LivePartitions(self.conn)
        self.ahead = ReadAhead(lambda: connect_as_service(database), page, page_bytes)
        self.reader = Reader(self.finder, self.partitions, self.ahead)
        self.group = Group(set(range(8)), Progress(self.reader.here()))
        self.waited: list[int] = []

    def read(self, between: Between = lambda turn: None, *, group: Group | None = None) -> list[int]:
        """Read until the group is level and nothing is left; `between` runs before each turn."""
        positions: list[int] = []
        for page in self._pages_of([group or self.group], between):
            assert [row[POSITION] for row in page.rows] == sorted(row[POSITION] for row in page.rows)
            assert page.progress == page.group.progress
            positions += [row[POSITION] for row in page.rows if row[WAITING] is None]
            self.waited += [row[ID] for row in page.rows if row[WAITING]]
        return positions

    def pages(self) -> Iterator[list[RawRow]]:
        """Read until the group is level and nothing is left, and yield the rows of each page."""
        for page in self._pages_of([self.group], lambda turn: None):
            yield page.rows

    def _pages_of(self, groups: list[Group], between: Between) -> Iterator[Page]:
        turn, is_done = 0, False
        while not is_done:
            between(turn)
            turn += 1
            # A backlog of which nothing is left ends without a page: poll once more.
            was_one = len(groups) == 1 and groups[0].is_level
            pages = list(self.reader.read(groups))
            groups = merge([*groups, *self.reader.take_apart()])
            is_done = was_one and not pages and len(groups) == 1 and groups[0].is_level
            yield from pages

    def close(self) -> None:
        self.ahead.close()
        self.conn.close()

    def retire(self) -> list[str]:
        """Take one step of leaving partitions out, as a session does every second."""
        newest = self.reader.newest
        return self.partitions.retire(newest, self.reader.here(), [self.group.progress.floor])


def narrow_partitions(conn: Connection, *, width: int = 1_000, count: int = 4) -> None:
    """Replace the partitions of an empty outbox by narrow ones."""
    tables = conn.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits "
        "WHERE inhparent = ANY ('{outbox.message,outbox.publication,outbox.event}'::regclass[])"
    ).fetchall()
    for (table,) in tables:
        conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*table.split("."))))
    for _ in range(count):
        conn.execute("SELECT outbox.add_partition(%s)", [width])
