"""What is written by a thread while a test kills, stops or moves something."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread


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
