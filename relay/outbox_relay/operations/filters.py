"""What to find: turns the options of `outbox message ls` into conditions with bound values."""

from __future__ import annotations

import base64
import binascii
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from outbox_relay.text import durations
from outbox_relay.text.errors import OptionError

STATUSES = (
    "UNKNOWN",
    "COMMITTED",
    "PUBLISHED",
    "ROLLED_BACK",
    "EXHAUSTED",
    "DEAD",
    "CANCELLED",
    "SKIPPED",
)
INDEXED = frozenset({"UNKNOWN", "EXHAUSTED", "DEAD"})
LARGEST_ID = 2**63 - 1
PLAIN = (
    "id",
    "topic",
    "key",
    "index_key",
    "tag",
    "producer_group",
    "transaction_id",
    "checker",
    "biz_type",
    "biz_id",
)
"""Conditions that bind one value under their own name."""


class FilterError(OptionError):
    """An option of a search cannot be read; names it, the problem and what is allowed."""


@dataclass(frozen=True)
class Filters:
    """The options of a search; None sets no condition."""

    id: int | None = None
    message_id: uuid.UUID | None = None
    topic: str | None = None
    key: bytes | None = None
    index_key: str | None = None
    tag: str | None = None
    status: str | None = None
    producer_group: str | None = None
    transaction_id: str | None = None
    checker: str | None = None
    biz_type: str | None = None
    biz_id: str | None = None
    since: float | datetime | None = None
    until: float | datetime | None = None

    @property
    def statement(self) -> str:
        """The statement (a block of messages.sql) that finds them."""
        return {
            "COMMITTED": "search_unpublished",
            "PUBLISHED": "search_published",
            "DEAD": "search_dead",
        }.get(self.status or "", "search")

    @property
    def windowed(self) -> bool:
        """Whether to search window by window from the newest id backwards; else one index has the result."""
        return self.id is None and self.message_id is None and self.status not in {"COMMITTED", *INDEXED}

    def conditions(self) -> tuple[list[str], dict[str, Any]]:
        """Name the conditions (blocks of messages.sql) and give the values they bind."""
        names: list[str] = []
        values: dict[str, Any] = {}
        for name in PLAIN:
            value = getattr(self, name)
            if value is not None:
                names.append(f"by_{name}")
                values[name] = value
        if self.message_id is not None:
            # Only the outbox makes ids of version 8; see outbox.new_message_id.
            names.append("by_own_message_id" if self.message_id.version == 8 else "by_foreign_message_id")
            values["message_id"] = self.message_id
        if self.status is not None and self.statement == "search":
            # With an id the state is a mere filter; the audit is looked through window by window only.
            names.append("by_past_transition" if self.windowed else "by_state")
            values["state"] = self.status
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                ago = "" if isinstance(value, datetime) else "_ago"
                names.append(f"by_{name}{ago}")
                values[f"{name}{ago}"] = value
        if self.windowed:
            names.append("by_window")
        return names, values


def identity(text: str) -> tuple[int | None, uuid.UUID | None]:
    """Read what names one message: its id (a number) or its message id (a UUID).

    Raises:
        FilterError: it is neither.
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and 0 < int(stripped) <= LARGEST_ID:
        return int(stripped), None
    try:
        return None, uuid.UUID(stripped)
    except ValueError:
        raise FilterError(
            f"{text!r} does not name a message; expected its id (a number, as `outbox message ls` shows it) or its "
            "message id (a UUID, as in the record header outbox-id)"
        ) from None


def key(text: str) -> bytes:
    """Read a key: UTF-8 text, or `base64:…` as binary keys are shown.

    Raises:
        FilterError: what follows `base64:` is not base64.
    """
    if not text.startswith("base64:"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("base64:"), validate=True)
    except (binascii.Error, ValueError):
        raise FilterError(f"--key {text!r}: what follows 'base64:' is not base64") from None


def read_moment(option: str, text: str) -> float | datetime:
    """Read a time: so many seconds ago (`10m`, `2h`, `3d`), or an ISO time (without a zone: local time).

    Raises:
        FilterError: it is neither.
    """
    span = durations.read_seconds(text)
    if span is not None:
        return span
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        pass
    raise FilterError(
        f"{option} {text!r} is not a time; expected a span such as 30s, 10m, 2h, 3d, 1w (ago), or an ISO time such "
        "as 2026-11-21T20:00 (local) or 2026-11-21T20:00Z"
    )


def period(since: str | None, until: str | None) -> tuple[float | datetime | None, float | datetime | None]:
    """Read `--since` and `--until` together.

    Raises:
        FilterError: one of them cannot be read, or nothing can be between them.
    """
    begin = None if since is None else read_moment("--since", since)
    end = None if until is None else read_moment("--until", until)
    now = datetime.now(UTC)
    if begin is not None and end is not None and at(begin, now) >= at(end, now):
        raise FilterError(
            f"--since {since} is not before --until {until}: nothing can be between them; the longer time ago belongs "
            f"to --since, as in --since {until} --until {since}"
        )
    return begin, end


def at(value: float | datetime, now: datetime) -> datetime:
    """Return the time that `moment` read, from which `now` was so many seconds away."""
    if isinstance(value, datetime):
        return value
    # What lies before the first year is as good as its beginning.
    ago = timedelta(seconds=min(value, (now - datetime.min.replace(tzinfo=UTC)).total_seconds()))
    return now - ago
