"""Who the operator is, for the audit: `operator:<user>`; the database adds its own user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAMED: ContextVar[str | None] = ContextVar("named operator", default=None)


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Name the operator for whom this process acts in the block: the console has several."""
    token = _NAMED.set(name)
    try:
        yield
    finally:
        _NAMED.reset(token)


def actor() -> str:
    """The operating system's user, and behind sudo the one who called it; the number where it has no name."""
    name, caller = _NAMED.get() or os_user(), os.environ.get("SUDO_USER")
    if _NAMED.get() is None and caller and caller != name:
        return f"operator:{caller} (sudo {name})"
    return f"operator:{name}"


def os_user() -> str:
    """Return the operating system's user, who started this process."""
    # Not by LOGNAME or USER, which anybody sets.
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without that user
        return str(os.getuid())
