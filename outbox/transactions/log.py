"""The logger of this package, and how errors are put into a line: never with a body or a password."""

from __future__ import annotations

import logging

log = logging.getLogger("outbox.transactions")


def told(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
