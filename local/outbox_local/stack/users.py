"""Who runs PostgreSQL: it refuses root, so under root another user must be able to reach its files."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from outbox_relay.downloads.errors import StackError


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """A system user that runs a server in our place."""

    name: str
    uid: int
    gid: int


def postgres_user() -> ServiceUser | None:
    """Choose who runs PostgreSQL: the caller (None), or under root `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return ServiceUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        "PostgreSQL refuses to run as root, and this machine has neither a user `postgres` nor `nobody`: "
        "run `outbox up` as an ordinary user, or give a server with --dsn"
    )


def reaches(user: ServiceUser | None, path: Path, permission: str = "x") -> bool:
    """Return whether the user has a permission ("r", "w" or "x") on a path, through every directory above it.

    The kernel is asked, as that user: modes, groups, access lists and read-only mounts all count. No
    mode is ever changed to make it true.
    """
    if user is None:
        return os.access(path, {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}[permission])
    question = ["/bin/sh", "-c", 'test "-$1" "$2"', "sh", permission, str(path)]
    asked = subprocess.run(question, user=user.uid, group=user.gid, extra_groups=[], check=False, cwd="/")
    return asked.returncode == 0
