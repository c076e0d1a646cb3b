"""Who the operator is, for the audit: `operator:<user>`; the database adds its own user."""

from __future__ import annotations

import os
import pwd


def actor() -> str:
    """The operating system's user, and behind sudo the one who called it; the number where it has no name."""
    name = _user()
    caller = os.environ.get("SUDO_USER")
    return f"operator:{caller} (sudo {name})" if caller and caller != name else f"operator:{name}"


def _user() -> str:
    # Not by LOGNAME or USER, which anybody sets.
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without that user
        return str(os.getuid())
