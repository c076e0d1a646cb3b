"""Starts the `outbox` command of an older checkout, whose software knows an older revision of the schema.

Run as `python tests/support/older_entry.py CHECKOUT PARENT_PID relay run …`; `older_software.py` makes the checkout.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.support import hostile
from tests.support.relay_entry import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    sys.path[:0] = [str(Path(sys.argv[1]) / name) for name in ("", "relay", "local", "migrations")]
    os.environ["PGOPTIONS"] = hostile.PGOPTIONS  # it takes over what its session begins with
    sys.argv = ["outbox", *sys.argv[3:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
