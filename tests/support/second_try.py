"""Runs the command of a test tier, and once more, alone, the tests of which only a wait ran out.

    python -m tests.support.second_try make test

A wait of `wait_until` that runs out on a machine that others keep busy says little; whatever else fails is a failure
at once: any wait of a fault test, too, but the one for the fault itself, and a run that ended without stating what
failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.failures import FILE, WAIT

MOST = 5
"""Of a run with more waits that ran out something is wrong that all of them share."""


def main(command: list[str]) -> int:
    """Run the command; return its exit code, or that of the second run."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the command ends by itself, and states what failed
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "failures.json"
        code = subprocess.run(command, env={**os.environ, FILE: str(noted)}, check=False).returncode
        if code == 0 or not noted.exists():
            return code
        failed: dict[str, str] = json.loads(noted.read_text())
        if not failed or len(failed) > MOST or set(failed.values()) != {WAIT}:
            return code
        sys.stdout.write(
            f"a wait ran out, and nothing else failed: {len(failed)} tests run once more, alone\n"
        )
        sys.stdout.flush()
        arguments = Path(folder) / "tests"
        arguments.write_text("".join(f"{test}\n" for test in failed))
        again = [sys.executable, "-m", "pytest", "-v", f"@{arguments}"]
        return subprocess.run(again, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
