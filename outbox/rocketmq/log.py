"""The logger of this package, and how errors are put into a line: never with a body or a password."""

from __future__ import annotations

import logging

from outbox.describing import describe

log = logging.getLogger("outbox.rocketmq")


def told(error: BaseException) -> str:
    """Describe an error in one line."""
    return " ".join(describe(error).split())[:300]
