"""Describes who is asked about a group's half messages, how, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from outbox_relay.operations.groups import RegisteredGroup
from outbox_relay.text import durations
from outbox_relay.text.masking import mask_url

LONGEST_QUERY = 60


def who(group: RegisteredGroup, checker: str | None = None) -> str:
    """Return who asks whom about a half message of this group.

    Args:
        group: its registration, or the defaults.
        checker: the name of the checker that the half message carries.
    """
    callback = group.callback
    if callback is None:
        named = "" if checker is None else f", which must have registered checker {checker!r}"
        return f"the checker in an application of group {group.name!r}{named}"
    return f"`outbox checker run`, by {shown(callback)}"


def shown(callback: Mapping[str, Any] | None) -> str:
    """Show a callback in short, without what a URL must not hold but might."""
    if callback is None:
        return "in process"
    if callback.get("kind") == "http":
        return f"HTTP {mask_url(str(callback.get('url')))}"
    query = " ".join(str(callback.get("query")).split())
    where = f" in the database of ${callback['dsn_env']}" if callback.get("dsn_env") else ""
    return (
        f"SQL{where}: {query if len(query) <= LONGEST_QUERY else query[: LONGEST_QUERY - 1].rstrip() + '…'}"
    )


def brief(callback: Mapping[str, Any] | None) -> str:
    """Name the way of asking, and the host that is asked over HTTP."""
    if callback is None:
        return "in process"
    if callback.get("kind") != "http":
        return "SQL"
    try:
        return f"HTTP {urlsplit(str(callback.get('url'))).hostname or ''}".rstrip()
    except ValueError:
        return "HTTP"


def schedule(group: RegisteredGroup) -> str:
    """Return when a half message of this group is asked about: 6s, then 30s … 10min, 15 times, 3d at most."""
    one = group.settings
    return (
        f"after {durations.short(one.check_after)}, then every {durations.short(one.check_interval)} growing to "
        f"{durations.short(one.max_check_interval)}, {one.max_checks} times and "
        f"{durations.short(one.max_age)} at most"
    )
