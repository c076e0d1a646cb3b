"""Errors of Java, told in words of the job: what happened, and what a user can do."""

from __future__ import annotations

import re

from outbox_etl.errors import ConcurrentRunError, EtlError, SourceError, TargetError

SECRET = re.compile(r"(?i)(password=)[^&\s]+|(://[^:/@\s]+:)[^@\s]+@")


def explained(error: BaseException) -> EtlError | None:
    """The error as one of the job's own; None when it is a defect whose traceback is needed."""
    text = SECRET.sub(lambda found: f"{found[1] or found[2]}***" + ("@" if found[2] else ""), str(error))
    for pattern, kind, say in KNOWN:
        if found := re.search(pattern, text):
            return kind(say.format(*(group.strip() for group in found.groups())))
    return None


KNOWN: tuple[tuple[str, type[EtlError], str], ...] = (
    (
        r"No space left on device",
        TargetError,
        "no space left where Spark works or the warehouse lies; nothing half is visible",
    ),
    (r"PSQLException: ([^\n]*)", SourceError, "PostgreSQL: {0}"),
    (
        r"(?:ValidationException|CommitFailedException): ([^\n]*)",
        ConcurrentRunError,
        "another run changed the warehouse: {0}. Run again",
    ),
)
