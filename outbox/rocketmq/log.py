"""The logger of this package, and how errors are put into a line: never with a body or a password."""

from __future__ import annotations

import logging

from outbox.checking.describing import error_text

log = logging.getLogger("outbox.rocketmq")


def one_line(error: BaseException) -> str:
    """Describe an error in one line."""
    return " ".join(error_text(error).split())[:300]
