"""Standard output that cannot take what is written: another encoding, a full device, a reader that has gone."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a device replies that takes no more."""


def escape_what_cannot_be_encoded() -> None:
    """Let both streams write `\\u4e2d` where their encoding has no such letter, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def takes_any_text() -> bool:
    """Whether every letter can be written, so that JSON needs no escapes: click writes UTF-8 where ASCII is set."""
    return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name in {"utf-8", "ascii"}


@contextmanager
def complete_output(fail: Callable[[str], object]) -> Iterator[None]:
    """Run a command, and end with 1 if standard output has not taken all of its output.

    Args:
        fail: reports the error.

    Raises:
        SystemExit: with 1.
    """
    escape_what_cannot_be_encoded()
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        is_full = error.errno in FULL and error.filename is None and not _takes_output()
        if not is_full and error.errno != errno.EPIPE:
            raise
        _discard_output()
        if is_full:
            with suppress(OSError):  # standard error may be on the same device
                fail(f"cannot write standard output: {error.strerror}; what is there is not complete")
        sys.exit(1)


def _takes_output() -> bool:
    """Whether one more byte can be written, so that the error was another file's."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except io.UnsupportedOperation:
        return True
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Let the interpreter's own flush at its end succeed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
