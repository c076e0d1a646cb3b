"""The job's jars, Iceberg and PostgreSQL's JDBC driver: fetched once, checked against the list that the job brings."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.jar_list import Jar, listed


@functools.cache
def pinned() -> tuple[Jar, ...]:
    """Read the job's own list: it names the versions that the job was tried with."""
    return listed((files("outbox_etl") / "jars.txt").read_text())


def etl_jars(progress: Callable[[int, int], None]) -> tuple[str, ...]:
    """Fetch the jars once (50 MB) and answer their paths; `progress` gets (jars done, jars in all).

    Raises StackError when one cannot be fetched or is not the one that was pinned.
    """
    jars = pinned()

    def fill(target: Path) -> None:
        # Loaded when there is something to fetch.
        download = importlib.import_module("outbox_relay.downloads.download").download
        download(jars, target, progress, instead="jars of your own in --jars")

    folder = cached(f"etl-{hashlib.sha256(repr(jars).encode()).hexdigest()[:8]}", fill)
    return tuple(str(folder / jar.file_name) for jar in jars)
