"""Errors of Java and of this machine, in the job's words: what happened, and what a user can do; one line each."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from outbox_etl.errors import EtlError, SettingsError, TargetError
from outbox_etl.known_failures import AGAIN, KNOWN

SECRET = re.compile(r"(?i)(password=)[^&\s]+|(://[^:/@\s]+:)[^@\s]+@")
MOST_CAUSES = 20
"""Causes that are looked at; a chain of causes may end in itself."""


def explained(error: BaseException, secrets: Collection[str] = (), *, warehouse: str = "") -> EtlError | None:
    """The error as one of the job's own, without secrets; None when it is a defect whose traceback is needed.

    Java does not say which disk is full, so the `warehouse` is named where that is known.
    """
    if isinstance(error, EtlError):
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in {"pyspark", "py4j"}:
        return SettingsError(
            "pyspark is not installed here: pip install 'outbox-kafka[etl]', or run the job by spark-submit"
        )
    text = masked("\n".join(_told(error)), secrets)
    for pattern, kind, say in KNOWN:
        if found := re.search(pattern, text):
            groups = (" ".join((group or "").split()) for group in found.groups())
            return kind(say.format(*groups, at=f" ({masked(warehouse, secrets)})" if warehouse else ""))
    if isinstance(error, OSError) and error.filename:
        return TargetError(
            f"{error.filename}: {error.strerror}. Give another --warehouse, or repair that. {AGAIN}"
        )
    return None


def masked(text: str, secrets: Collection[str] = ()) -> str:
    """A text without passwords: those that are known, and those in URLs."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return SECRET.sub(lambda found: f"{found[1] or found[2]}***" + ("@" if found[2] else ""), text)


def _told(error: BaseException) -> Iterator[str]:
    """What the error says, and its causes; of Java's as `class: message`.

    The outermost says least: a commit that fails because a file is damaged is told by Spark as a job that was aborted.
    """
    # (Where Java itself is gone, what py4j says of that is told already.)
    with contextlib.suppress(Exception):
        yield f"{type(error).__name__}: {error}"
    # pyspark has the Java error in `_origin`, py4j in `java_exception`.
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    with contextlib.suppress(Exception):
        for _ in range(MOST_CAUSES):
            if cause is None:
                return
            yield f"{cause.getClass().getName()}: {cause.getMessage()}"
            cause = cause.getCause()
