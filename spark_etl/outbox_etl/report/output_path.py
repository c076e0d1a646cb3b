"""The report's file: whether it can be written, before anything runs; and the writing, which is whole or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import tempfile
from pathlib import Path

from outbox_etl.errors import SettingsError


def check(path: Path) -> None:
    """Make sure that a report can be drawn, and written there.

    Raises:
        SettingsError: it cannot, and why.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(
            "--report draws with matplotlib, which is not installed here: pip install matplotlib"
        )
    if path.exists() and not path.is_file():
        raise SettingsError(f"--report {path} is not a file: expected a file name, such as report.html")
    folder = path.resolve().parent
    try:
        # What permissions say is not all: a file system may be read-only, or full.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        raise SettingsError(f"--report {path} cannot be written: {folder}: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """Write the report: readers see the old file or the new one, also when the process dies in between."""
    whole = path.resolve()  # a link stays one
    part = whole.with_name(f".{whole.name[:100]}.{secrets.token_hex(4)}")
    try:
        with part.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
