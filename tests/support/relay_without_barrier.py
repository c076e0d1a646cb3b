"""A relay that publishes without the barrier and records nothing: what the barrier is there to prevent."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from outbox_relay.publisher.core.values import Write
from outbox_relay.publisher.hands.writes import Writes

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.relay_entry import die_with


def record(self: Writes, write: Write) -> Write:
    """Make no commit."""
    return write


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    setattr(Writes, "record", record)  # noqa: B010  (mypy knows that a method is not assigned to)
    # Else records would travel with the polls, and be the barriers of what these find.
    setattr(Writes, "rider", lambda *_: None)  # noqa: B010  (the same)
    sys.argv = ["outbox", *sys.argv[2:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
