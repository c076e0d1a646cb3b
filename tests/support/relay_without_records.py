"""A relay that records nothing, because records are flushed commits; its barriers are real.

With `--early-position` in front of the command, its polls ask whether a position of the log is flushed that was read
before their snapshots, instead of one that was read by themselves.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from psycopg import sql

from outbox_relay.publisher import finder
from outbox_relay.publisher.recorder import Recorder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.relay_entry import die_with

EARLY = "--early-position"
_commit = Recorder.commit


def commit(self: Recorder, *args: Any, barrier: bool = False) -> int:
    """Make barriers only."""
    return _commit(self, [], [], barrier=True) if barrier else 0


if __name__ == "__main__":
    *entry, parent = sys.argv[: sys.argv.index("relay")]
    die_with(int(parent))
    if EARLY in entry:
        # What is flushed now was written before.
        finder._ASKED["written"] = sql.SQL("pg_current_wal_flush_lsn()")
    setattr(Recorder, "commit", commit)  # noqa: B010  (mypy knows that a method is not assigned to)
    setattr(Recorder, "send_along", lambda *_: None)  # noqa: B010  (the same)
    sys.argv = ["outbox", *sys.argv[sys.argv.index("relay") :]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
