"""Runs a module, or the file of a program, in a process that dies with the test that started it.

Run as `python tests/support/module_entry.py PARENT_PID uvicorn service:app …`, or with `manage.py migrate`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.support.relay_entry import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path.cwd())
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
