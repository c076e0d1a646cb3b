"""Runs the tests of the gate again and again, each time in another order and beside a second load.

    python -m tests.support.burn_in --runs 10 [--seed 1] [COMMAND …]

The load is a process for each core that computes half of the time, and one that writes to the disk and waits for it.
What failed in which run is listed at the end, with the seed that gives the same order: `OUTBOX_ORDER=SEED make test`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.failures import FILE, ORDER

TURN_S = 0.05
BLOCK = 1 << 20
GATE = (("make", "test"), ("make", "faults", "TIER=quick"))


class Run(NamedTuple):
    """One run of one command."""

    seed: str
    command: str
    seconds: float
    code: int
    failed: dict[str, str]
    """Node id → what failed: a wait, or something else."""


def say(line: str) -> None:
    """Print a line at once, between those of the commands."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def compute() -> None:
    """Compute for half of the time, until it is ended."""
    pause = threading.Event()
    while True:
        until = time.perf_counter() + TURN_S
        while time.perf_counter() < until:
            pass
        pause.wait(TURN_S)


def write(path: str) -> None:
    """Write a megabyte, wait for the disk, pause; until it is ended."""
    pause = threading.Event()
    with Path(path).open("wb", buffering=0) as file:
        while True:
            file.seek(0)
            file.write(bytes(BLOCK))
            os.fsync(file.fileno())
            pause.wait(TURN_S)


@contextmanager
def load(folder: str) -> Iterator[None]:
    """Keep the machine busy during the block."""
    processes = [multiprocessing.Process(target=compute, daemon=True) for _ in range(os.cpu_count() or 1)]
    processes.append(multiprocessing.Process(target=write, args=[f"{folder}/load"], daemon=True))
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def run(command: tuple[str, ...], seed: str, folder: str) -> Run:
    """Run one command in the order of a seed."""
    noted = Path(folder) / "failures.json"
    noted.unlink(missing_ok=True)
    started = time.monotonic()
    environ = {**os.environ, FILE: str(noted), ORDER: seed}
    code = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, check=False).returncode
    failed = json.loads(noted.read_text()) if noted.exists() else {}
    return Run(seed, " ".join(command), time.monotonic() - started, code, failed)


def main(arguments: list[str]) -> int:
    """Run all; return 1 if anything failed in any run."""
    parser = argparse.ArgumentParser(
        prog="tests.support.burn_in", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("command", nargs=argparse.REMAINDER, help="instead of the gate's tests")
    options = parser.parse_args(arguments)
    commands = (tuple(options.command),) if options.command else GATE
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder, load(folder):
        for number in range(options.runs):
            runs.extend(run(command, f"{options.seed}.{number}", folder) for command in commands)
            say(f"burn-in: {number + 1} of {options.runs} runs")
    for one in runs:
        say(f"seed {one.seed}  {one.command}  {one.seconds:.0f} s  {'green' if one.code == 0 else 'RED'}")
        for test, reason in one.failed.items():
            say(f"    {reason}: {test}")
    return int(any(one.code for one in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
