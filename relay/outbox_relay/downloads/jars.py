"""Kafka's jars: the pinned list, and the directory in the cache that holds them."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.jar_list import Jar, listed

KAFKA_VERSION = "4.4.0"


@functools.cache
def pinned() -> tuple[Jar, ...]:
    """Read the list of jars that a broker needs."""
    return listed((files("outbox_relay.downloads") / "kafka-jars.txt").read_text())


def kafka_jars(progress: Callable[[int, int], None]) -> Path:
    """Fetch the broker's jars once (43 MB) and answer their directory; `progress` gets (jars done, jars in all).

    Raises StackError when one cannot be fetched or is not the one that was pinned.
    """

    def fill(target: Path) -> None:
        # Loaded when there is something to fetch: its HTTP client takes longer to load than a running stack to find.
        importlib.import_module("outbox_relay.downloads.download").download(pinned(), target, progress)

    return cached(cache_name(), fill)


def cache_name() -> str:
    """Name this pinned list, so that a new list never finds an old list's files."""
    return f"kafka-{KAFKA_VERSION}-{hashlib.sha256(repr(pinned()).encode()).hexdigest()[:8]}"
