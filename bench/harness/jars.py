"""A peer's jars: the pinned list in its package, and the directory in the cache that holds them."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from bench.harness.servers import Say
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.download import download
from outbox_relay.downloads.jar_list import listed


def fetched(package: str, name: str, say: Say) -> Path:
    """Fetch the jars of a package's list `jars.txt` once and answer their directory.

    Args:
        package: the peer's, as `bench.rocketmq`.
        name: the peer's with its version, as `rocketmq-5.5.0`: how the directory is called.
        say: told that it takes a while.

    Raises:
        StackError: one cannot be fetched or is not the one that was pinned.
    """
    pinned = listed((files(package) / "jars.txt").read_text())

    def fill(target: Path) -> None:
        say(f"fetching {len(pinned)} jars of {name}")
        download(pinned, target, lambda done, total: None)

    return cached(f"{name}-{hashlib.sha256(repr(pinned).encode()).hexdigest()[:8]}", fill)
