"""Kafka's jars: the pinned list, and the directory in the cache that holds them."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from outbox_relay.downloads.cache import cached

KAFKA_VERSION = "4.4.0"


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the pinned list."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file, as every Maven repository calls it."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The place of the file in every Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


@functools.cache
def pinned() -> tuple[Jar, ...]:
    """Read the list of jars that a broker needs."""
    return listed((files("outbox_relay.downloads") / "kafka-jars.txt").read_text())


def listed(text: str) -> tuple[Jar, ...]:
    """Read a pinned list: lines of group:artifact:version sha256, and comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = (line.replace(":", " ").split() for line in lines)
    return tuple(Jar(group, artifact, version, sha256) for group, artifact, version, sha256 in rows)


def kafka_jars(progress: Callable[[int, int], None]) -> Path:
    """Fetch the broker's jars once (43 MB) and answer their directory; `progress` is told (jars done, jars in all).

    Raises StackError when one cannot be fetched or is not the one that was pinned.
    """

    def fill(target: Path) -> None:
        # Loaded when there is something to fetch: its HTTP client takes longer to load than a running stack to find.
        importlib.import_module("outbox_relay.downloads.download").download(pinned(), target, progress)

    return cached(cache_name(), fill)


def cache_name() -> str:
    """Name this pinned list, so that a new list never meets an old list's files."""
    return f"kafka-{KAFKA_VERSION}-{hashlib.sha256(repr(pinned()).encode()).hexdigest()[:8]}"
