"""How a demo ends when it is asked to by SIGTERM."""

from __future__ import annotations

import sys
from types import FrameType


def end(number: int, frame: FrameType | None) -> None:
    """End as after Ctrl-C: what was started is stopped on the way out. A signal handler."""
    sys.exit(128 + number)
