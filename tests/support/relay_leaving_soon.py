"""A relay that leaves its lanes to others when no broker has replied to it for eight seconds, not for thirty."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from outbox_relay.publisher import session

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.relay_entry import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    setattr(session, "LEAVE_S", 8.0)  # noqa: B010  (mypy knows that a constant is not assigned to)
    sys.argv = ["outbox", *sys.argv[2:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
