"""A line for people when a server keeps a command waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer

AFTER_S = 1.5
"""Seconds of silence before the line."""

TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)
"""What a command shows the line with; services, which log, have none."""


@contextmanager
def announced(server: str) -> Iterator[None]:
    """Report what is waited for, if what runs inside takes long.

    Args:
        server: as people name it.
    """
    tell = TELL.get()
    if tell is None:
        yield
        return
    timer = Timer(AFTER_S, tell, [f"waiting for {server} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
