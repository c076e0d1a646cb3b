"""Reading as the relay does, without a relay around it: the core's reads, executed on a database of their own.

All that is read counts as acknowledged and recorded at once; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from psycopg import sql

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Limits, Page
from outbox_relay.publisher.finder import PAGE_BYTES, POSITION, WAITING, Finder, RawRow, prepare_session
from outbox_relay.publisher.hands.reads import Reads, topics_of
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.plain_inserts import Connection, connect_as_service

Between = Callable[[int], Any]


class Reading:
    """The reads of a set of lanes, and what they have brought."""

    def __init__(
        self,
        database: str,
        *,
        page: int = 10,
        page_bytes: int = PAGE_BYTES,
        lanes: Collection[int] = range(8),
        floor: Snapshot | None = None,
    ) -> None:
        self.conn = connect_as_service(database)
        prepare_session(self.conn)
        self.finder = Finder(self.conn, page=page, page_bytes=page_bytes)
        self.partitions = LivePartitions(self.conn)
        self.ahead = ReadAhead(lambda: connect_as_service(database), page, page_bytes)
        self._rows = Rows()
        self._reads = Reads(self.finder, self.partitions, self.ahead, frozenset(lanes))
        self._limits = Limits(page=page, page_size=page_bytes, rows=4 * page, window=page)
        self.start(self.finder.here()[0] if floor is None else floor)

    def start(self, floor: Snapshot) -> None:
        """Begin at a floor, as a session does that follows one that died."""
        self._reads.close_lists()
        self._reads.has_tail = False
        self.core = Core(
            floor, {}, {}, lambda row, count: 0, group_of=self._reads.group_of, limits=self._limits
        )

    @property
    def floor(self) -> Snapshot:
        """What this snapshot sees is read."""
        return self.core.sources.floor(set()).snapshot

    def read(self, between: Between = lambda turn: None) -> list[int]:
        """Read until nothing is left, and return the positions; `between` runs before each turn."""
        return [row[POSITION] for page in self._pages(between) for row in page if row[WAITING] is None]

    def pages(self) -> Iterator[list[RawRow]]:
        """Read until nothing is left, and yield the rows of each page that has any."""
        return self._pages(lambda turn: None)

    def _pages(self, between: Between) -> Iterator[list[RawRow]]:
        turn, level = 0, 0
        while level < 2:  # twice a tail that brings nothing, and no list is open
            between(turn)
            turn += 1
            page = self.turn()
            level = 0 if page or self.core.sources.catch_ups else level + 1
            if page:
                yield page

    def turn(self) -> list[RawRow]:
        """Execute one read, and settle what it brought; a list that is not ready brings nothing."""
        read = self.core.next_read()
        answer = None if read is None else self._reads.execute(read)
        if read is None or answer is None:
            return []
        raws = answer.raws
        assert [raw[POSITION] for raw in raws] == sorted(raw[POSITION] for raw in raws)
        topics = topics_of(raws)
        self._reads.learn_groups(topics)
        for topic in topics - self.core.topics.counts.keys():
            self.core.set_count(topic, (1, None))
        rows = self._rows.of_page(raws, {})
        self.core.add(Page(read, rows, answer.snapshot, answer.has_more, answer.heavy))
        while self.core.is_waiting() or self.core.next_write() is not None:
            self.core.written(self.core.next_write() or self.core.barrier())
            for item, producer in self.core.to_send():
                self.core.acknowledged([item], producer)
        return raws

    def close(self) -> None:
        self._reads.close_lists()
        self.ahead.close()
        self.conn.close()

    def retire(self) -> list[str]:
        """Take one step of leaving partitions out, as a session does every second."""
        return self.partitions.retire(self._reads.newest, self.finder.beyond_all_running(), [self.floor])


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
