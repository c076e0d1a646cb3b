"""One reader for all open pages: a page is read again and again while somebody has it open, and never else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

REST = 30.0
"""A page rests for so many times as long as its last read took: large backlogs make it slower, not the database."""
LONGEST_REST_S = 10.0
"""Seconds; somebody waits for it."""


class Update(NamedTuple):
    """What is sent to a page: its new content, or why it cannot be read (`away`)."""

    kind: str
    text: str


class LivePage:
    """A page that is shared by those who have it open.

    Args:
        read: reads its content; it runs in a thread.
        every: seconds between two reads at least.
    """

    def __init__(self, read: Callable[[], Update], every: float) -> None:
        self._read, self._every = read, every
        self._changed = asyncio.Event()
        self._newest: Update | None = None
        self._listeners = 0
        self._is_over = False
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_read(self) -> bool:
        """Whether it is being read again and again."""
        return self._reading is not None

    async def updates(self) -> AsyncIterator[Update]:
        """Yield what is read while this is iterated; the first that listens begins the reading, the last ends it."""
        self._listeners += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._repeat())
        try:
            while not self._is_over:
                await self._changed.wait()
                if self._newest is not None:
                    yield self._newest
        finally:
            self._listeners -= 1
            if not self._listeners and self._reading is not None:
                self._reading.cancel()
                self._reading = self._newest = None

    def end(self) -> None:
        """Disconnect the pages: the console ends."""
        self._is_over = True
        self._changed.set()

    async def _repeat(self) -> None:
        while True:
            began = time.monotonic()
            self._newest = await run_in_threadpool(self._read)
            took = time.monotonic() - began
            # Wake those who wait, and let the next ones wait for the next read.
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(max(self._every, min(REST * took, LONGEST_REST_S)))
