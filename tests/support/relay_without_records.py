"""A relay that records nothing, because records are flushed commits; its barriers are real.

With `--early-position` in front of the command, its polls ask whether a position of the log is flushed that was read
before their snapshots, instead of one that was read by themselves.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from psycopg import sql

from outbox_relay.publisher import finder
from outbox_relay.publisher.core.values import Write
from outbox_relay.publisher.hands.writes import Writes

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.relay_entry import die_with

EARLY = "--early-position"


def record(self: Writes, write: Write) -> Write:
    """Make barriers only, of what was read."""
    if write.is_barrier:
        self.barrier()
    return write


if __name__ == "__main__":
    *entry, parent = sys.argv[: sys.argv.index("relay")]
    die_with(int(parent))
    if EARLY in entry:
        # What is flushed now was written before.
        finder._ASKED["written"] = sql.SQL("pg_current_wal_flush_lsn()")
    setattr(Writes, "record", record)  # noqa: B010  (mypy knows that a method is not assigned to)
    setattr(Writes, "rider", lambda *_: None)  # noqa: B010  (the same)
    sys.argv = ["outbox", *sys.argv[sys.argv.index("relay") :]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
