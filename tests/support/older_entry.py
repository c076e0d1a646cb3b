"""Starts the `outbox` command as the version before it: one that knows an older revision of the schema.

Run as `python tests/support/older_entry.py REVISION PARENT_PID relay run …`. All other code is today's, as in a release
that changes the schema only.
"""

from __future__ import annotations

import runpy
import sys

from outbox_relay.database import schema
from tests.support.relay_entry import die_with

if __name__ == "__main__":
    schema.REVISION = sys.argv[1]
    die_with(int(sys.argv[2]))
    sys.argv = ["outbox", *sys.argv[3:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
