"""The download cache: what is in it is whole, because a directory enters it in one rename."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def cache_directory() -> Path:
    """Return where downloads are kept: $OUTBOX_CACHE, else outbox/ below $XDG_CACHE_HOME or ~/.cache."""
    if given := os.environ.get("OUTBOX_CACHE"):
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache").absolute() / "outbox"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock; a process that dies gives it back, however it dies."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is(path, file.fileno()):
                continue  # removed while we waited (`outbox down --wipe`): who comes next would not meet us here
            yield
            return


def _is(path: Path, descriptor: int) -> bool:
    """Return whether a path still names the file that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Answer the cache's directory of that name, filled by `fill` if it is not there yet.

    `fill` works in a directory next to it. Whatever interrupts it, nothing half-done appears under the name,
    and two processes that want the same wait for each other.
    """
    root = cache_directory()
    target = root / name
    if target.is_dir():
        return target
    with locked(root / f".{name}.lock"):
        if not target.is_dir():
            for rubble in root.glob(
                f".{name}.part-*"
            ):  # of a run that was killed; the lock says nobody works there
                shutil.rmtree(rubble, ignore_errors=True)
            part = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=root))
            part.chmod(0o755)
            try:
                fill(part)
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return target
