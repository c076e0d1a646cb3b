"""File systems in memory of a size that a test chooses, to be filled up or never written to; mounting needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(place: Path, options: str, *, in_use: bool = False) -> Iterator[Path]:
    """Mount a disk at a directory, which it makes, with options as `size=3m`; it is gone after the block.

    Whoever still uses it then is an error, unless `in_use` says that processes which are killed may.
    """
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", *(["-l"] if in_use else []), str(place)], check=True)
