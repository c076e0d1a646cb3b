"""Runs many commands of `outbox`, each with an own standard output, forked from one process that has imported all.

    python forked_commands.py PLACE < commands.json

Each command's standard output is PLACE, where it is a device, or a file of its number in that directory; what it writes
to standard error and its exit code are printed as JSON. The encoding is that of PYTHONIOENCODING.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    err: str


def run_all(commands: list[list[str]], place: Path, environment: dict[str, str]) -> list[Ended]:
    """Run commands with their standard output at a place."""
    ran = subprocess.run(
        [sys.executable, __file__, str(place)],
        input=json.dumps(commands),
        env={**os.environ, "PGOPTIONS": "", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [Ended(*each) for each in json.loads(ran.stdout)]


def main() -> None:
    """Fork once for each command."""
    from outbox_relay.cli.main import LazyGroup

    for name in LazyGroup.sources:
        LazyGroup().get_command(Any, name)  # type: ignore[arg-type]
    gc.freeze()
    place = Path(sys.argv[1])
    results = []
    for number, command in enumerate(json.load(sys.stdin)):
        with tempfile.TemporaryFile() as errors:
            target = place / str(number) if place.is_dir() else place
            if (child := os.fork()) == 0:
                os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT), 1)
                os.dup2(errors.fileno(), 2)
                _run(command)
            _, status = os.waitpid(child, 0)
            errors.seek(0)
            results.append((os.waitstatus_to_exitcode(status), errors.read().decode("utf-8", "replace")))
    sys.stdout.write(json.dumps(results))


def _run(command: list[str]) -> None:
    """Run one; flush once more, as the interpreter does at its end, and spare the rest of that."""
    from outbox_relay.cli.main import main as outbox

    sys.argv, code = ["outbox", *command], 0
    try:
        outbox(prog_name="outbox")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"Exception ignored: {error}")
        code = 120
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
