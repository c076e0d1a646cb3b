"""Remarks: why a message was decided as it was. They are shown to operators and kept in the audit."""

from __future__ import annotations

from typing import Any

from outbox.errors import ConfigurationError
from outbox.validation import exact

LONGEST_REMARK = 500
"""Characters of a remark that are kept: an exception's text may be of any length."""


def checked_remark(remark: Any) -> str | None:
    """Check a caller's remark and shorten it to what is kept.

    Raises:
        ConfigurationError: It is neither text nor None.
    """
    if remark is not None and not isinstance(remark, str):
        raise ConfigurationError(f"remark: is {type(remark).__name__}; allowed: str or None")
    return shortened(None if remark is None else exact(remark))


def shortened(remark: str | None) -> str | None:
    """Shorten a remark to `LONGEST_REMARK`, and replace characters that PostgreSQL's text cannot hold."""
    if remark is None:
        return None
    remark = remark.replace("\0", "�").encode("utf-8", "replace").decode()
    return remark if len(remark) <= LONGEST_REMARK else remark[: LONGEST_REMARK - 1] + "…"
