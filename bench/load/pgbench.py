"""pgbench: runs a script of statements for some seconds and says how many transactions there were."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.harness.cpu import Meter
from bench.harness.servers import Servers

_TPS = re.compile(r"^tps = ([\d.]+) ", re.MULTILINE)
_COUNT = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
THREADS = 4
INTO_VARIABLES = r" \gset"
r"""Ends a statement whose row becomes variables of the script, in place of a semicolon (`\gset`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Transactions per second without connecting, and what PostgreSQL used for one, in µs of CPU."""

    per_second: float
    postgres_us: float


def run(
    servers: Servers,
    dsn: str,
    statements: Sequence[str],
    *,
    settings: Sequence[str],
    variables: Mapping[str, str],
    clients: int,
    seconds: int,
) -> Outcome:
    r"""Run one transaction script with prepared statements; `settings` are pgbench's own lines such as `\set`.

    Raises:
        RuntimeError: pgbench failed or transactions did; with what it wrote.
    """
    script = "\n".join([*settings, *map(_ended, statements)])
    with tempfile.NamedTemporaryFile("w", prefix="outbox-bench-", suffix=".sql") as file:
        file.write(script + "\n")
        file.flush()
        meter = Meter({"postgres": servers.pids["postgres"]})
        done = subprocess.run(
            [
                *(
                    str(servers.program("pgbench")),
                    "--no-vacuum",
                    "--protocol=prepared",
                    f"--file={file.name}",
                ),
                *(f"--client={clients}", f"--jobs={min(clients, THREADS)}", f"--time={seconds}"),
                *(f"--define={name}={value}" for name, value in variables.items()),
                dsn,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        meter.wait_for_children()
        used = meter.seconds()["postgres"]
    tps, count, failed = (pattern.search(done.stdout) for pattern in (_TPS, _COUNT, _FAILED))
    if done.returncode or not tps or not count or (failed and failed[1] != "0"):
        raise RuntimeError(
            f"pgbench failed with code {done.returncode}:\n{done.stderr}\n{done.stdout}\n{script}"
        )
    return Outcome(float(tps[1]), used / max(int(count[1]), 1) * 1e6)


def _ended(statement: str) -> str:
    return statement if statement.endswith(INTO_VARIABLES) else f"{statement};"
