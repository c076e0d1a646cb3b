"""What is written by a thread while a test kills, stops or moves something."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert_numbered, numbered


class BackgroundLoad(ABC):
    """Writes in a thread of its own until the end of a block; may be run again."""

    def __init__(self) -> None:
        self._end = Event()

    @abstractmethod
    def _write(self) -> None:
        """Write until `_end` is set."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write until the end of the block."""
        self._end.clear()
        thread = Thread(target=self._write)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()


class NumberedLoad(BackgroundLoad):
    """Numbered messages of one topic: some at once, and then a few at a time; `committed` has all of them."""

    def __init__(
        self,
        dsn: str,
        topic: str,
        *,
        before: int = 950,
        few: int = 10,
        pause: float = 0.1,
        is_narrow: bool = True,
    ) -> None:
        """Write the first ones.

        Args:
            dsn: of the database.
            topic: of the messages.
            before: how many are written at once.
            few: how many are written at a time then.
            pause: seconds between those.
            is_narrow: make partitions of 1,000 messages first, so that some are left behind.
        """
        self._dsn, self._topic, self._few, self._pause = dsn, topic, few, pause
        super().__init__()
        self.committed = numbered(before)
        with connect(dsn) as conn:
            if is_narrow:
                narrow_partitions(conn, width=1_000, count=10)
            insert_numbered(conn, topic, before)

    def _write(self) -> None:
        with connect(self._dsn) as conn:
            while not self._end.wait(self._pause):
                number = len(self.committed)
                insert_numbered(conn, self._topic, self._few, start=number)
                self.committed += numbered(self._few, start=number)
                self._write_others(conn, number)

    def _write_others(self, conn: Connection, number: int) -> None:
        """Write what else there is to be, behind the messages from this number on."""
