"""Members of groups that are never started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.inbox import FIRST, ConsumerSettings
from outbox.inbox.settings import Member, subscription_of


def member_of(group: str, topics: Mapping[str, Any], **options: Any) -> Member:
    """Make a member whose servers do not exist."""
    given = {"dsn": "", "kafka": {"bootstrap.servers": "nowhere:1"}, "consume_from": FIRST, **options}
    return Member(group, subscription_of(topics), ConsumerSettings(**given))
