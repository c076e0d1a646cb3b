"""A relay that takes each topic's limit for a higher one than it is, as after a change behind its back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from outbox_relay.publisher.records import Topic
from outbox_relay.publisher.topics import TopicLookup
from tests.support.plain_inserts import Connection


def misread_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let relays of this process read a limit of a million bytes, whatever Kafka has: the broker refuses messages."""
    read = TopicLookup.read

    def misread(lookup: TopicLookup, conn: Connection, names: Iterable[str]) -> Any:
        found = read(lookup, conn, names)
        for topic in found.values():
            if isinstance(topic, Topic):
                topic.max_message_bytes = topic.small = 1_000_000
        return found

    monkeypatch.setattr(TopicLookup, "read", misread)
