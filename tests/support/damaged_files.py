"""What a disk does to a file."""

from __future__ import annotations

import os
from pathlib import Path


def flip(path: Path) -> None:
    """Change a byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Lose the second half."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Lose every byte, as after a power failure."""
    os.truncate(path, 0)
