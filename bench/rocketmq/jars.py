"""RocketMQ's jars: the pinned list, and the directory in the cache that holds them."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from bench.harness.servers import Say
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.download import download
from outbox_relay.downloads.jar_list import listed

VERSION = "5.5.0"
DRIVER = "pgjdbc 42.7.14"


def jars(say: Say) -> Path:
    """Fetch the jars once and answer their directory.

    Raises:
        StackError: one cannot be fetched or is not the one that was pinned.
    """
    text = (files("bench.rocketmq") / "jars.txt").read_text()
    pinned = listed(text)

    def fill(target: Path) -> None:
        say(f"fetching {len(pinned)} jars of RocketMQ {VERSION}")
        download(pinned, target, lambda done, total: None)

    return cached(f"rocketmq-{VERSION}-{hashlib.sha256(repr(pinned).encode()).hexdigest()[:8]}", fill)
