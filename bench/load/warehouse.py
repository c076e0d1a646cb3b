"""Commands on a warehouse as a user gives them, and the peers of an export; each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.harness.command import Ran, run
from bench.load.history import STATEMENTS
from outbox_etl.source.reader import SQL
from outbox_etl.statements import statement
from outbox_relay.warehouse import prepare

MASTER = "local[*]"
DRIVER_MEMORY = "2g"
"""The default of `outbox etl`."""
LIMIT = 900.0
MARKS = {
    "window": r"window of ",
    "events": r"\d+ events",
    "publications": r"\d+ publications",
    "new": r"\d+ new messages",
    "older": r"\d+ older messages",
    "done": r"\d+ messages; done",
    "marts": r"marts of ",
}
"""What a run says, by the step that has ended then."""


@dataclass(slots=True)
class Exported:
    """One run of `outbox etl run`. Seconds; bytes."""

    seconds: float
    """The export itself, as the job reports it."""
    wall: float
    """With the process and Spark's start, and the marts."""
    events: int
    publications: int
    messages: int
    peak: int
    """Largest resident size of the driver's Java, which does all the work under local[*]."""
    steps: dict[str, float]
    """When each step had ended, since the window was known."""
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the whole command, by the program's name; PostgreSQL's are counted by who runs it."""

    def step(self, name: str, before: str) -> float:
        """How long a step took that follows another; 0 where the job did not say."""
        return max(self.steps.get(name, 0.0) - self.steps.get(before, 0.0), 0.0)


class Warehouse:
    """A warehouse below a directory, filled from one database."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.path, self._dsn = directory, dsn

    def export(self) -> Exported:
        """Export what is new, with default options."""
        ran = self._command("run")
        answer = json.loads(ran.output)
        return Exported(
            answer["seconds"],
            ran.seconds,
            answer["events"],
            answer["publications"],
            answer["messages"],
            max((size for name, size in ran.peaks.items() if name == "java"), default=0),
            _steps(ran),
            ran.cpu,
        )

    def reconcile(self, bootstrap_servers: str) -> dict[str, Any]:
        """Prove it complete.

        Raises:
            RuntimeError: it is not, or it could not be said.
        """
        answer: dict[str, Any] = json.loads(
            self._command("reconcile", "--bootstrap-servers", bootstrap_servers).output
        )
        return answer

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Data files and their bytes, by table; `all` has metadata too."""
        found: dict[str, tuple[int, int]] = {}
        for data in sorted(self.path.rglob("data")):
            files = [file.stat().st_size for file in data.rglob("*.parquet")]
            found[data.parent.name] = (len(files), sum(files))
        every = [file.stat().st_size for file in self.path.rglob("*") if file.is_file()]
        return {**found, "all": (len(every), sum(every))}

    def _command(self, name: str, *options: str) -> Ran:
        place = ["--warehouse", str(self.path), "--master", MASTER]
        return run(
            [sys.executable, "-m", "outbox_relay.cli.main", "etl", name, *place, *options, "--json"],
            environment={**os.environ, "OUTBOX_DSN": self._dsn},
            limit=LIMIT,
        )


def spark_job(job: str, dsn: str, warehouse: Path, output: Path) -> dict[str, Any]:
    """Run a job of `bench.load.spark_jobs`; its answer, with `wall` and `cpu`, the seconds of the whole process."""
    given = {
        "job": job,
        "dsn": dsn,
        "warehouse": str(warehouse),
        "output": str(output),
        "master": MASTER,
        "driver_memory": DRIVER_MEMORY,
        "jars": prepare.jars("", _quiet),
    }
    ran = run(
        [sys.executable, "-m", "bench.load.spark_jobs"],
        given=json.dumps(given),
        environment=prepare.environment(prepare.java_home(_quiet)),
        limit=LIMIT,
    )
    answer: dict[str, Any] = json.loads(ran.output.strip().splitlines()[-1])
    return {**answer, "wall": ran.seconds, "cpu": ran.cpu}


def copy(dsn: str, file: Path) -> dict[str, Any]:
    """COPY the same columns, binary, into a file: the limit of one connection."""
    text = sql.SQL(STATEMENTS["copy"]).format(columns=sql.SQL(statement(SQL, "message_columns")))
    began, size = time.monotonic(), 0
    with psycopg.connect(dsn) as conn, file.open("wb") as output, conn.cursor().copy(text) as rows:
        for block in rows:
            size += output.write(block)
    return {"seconds": time.monotonic() - began, "bytes": size}


def _steps(ran: Ran) -> dict[str, float]:
    found: dict[str, float] = {}
    for at, line in ran.said:
        for name, begins in MARKS.items():
            if re.match(begins, line):
                found[name] = at
    # They are written at the same time.
    found["both"] = max(found.get("events", 0.0), found.get("publications", 0.0))
    first = found.get("window", 0.0)
    return {name: at - first for name, at in found.items()}


def _quiet(line: str) -> None:
    """Nobody is told: the export's first run has fetched everything."""
