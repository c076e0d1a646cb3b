"""The warehouse of a demo: its history as `outbox etl run` exports it, in Parquet files, read back without Spark."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from outbox_local.demo.producer import SQL
from outbox_local.demo.tables import Tables
from outbox_local.demo.venue import Venue
from outbox_relay.cli.etl.progress import ProgressDisplay
from outbox_relay.database import connections
from outbox_relay.text.errors import OperatorError
from outbox_relay.warehouse import child, prepare

TABLES = ("message_history", "mart_throughput", "mart_latency", "mart_key_skew", "mart_gaps")
PATIENCE_S = 30.0
"""How long a transaction of somebody else may hold the export back."""
MASTER = "local[2]"


class WarehouseError(OperatorError):
    """There can be no warehouse."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where the history goes, and what the job needs: all of it was there before the demo began."""

    directory: Path
    java_home: str | None
    jars: str

    @classmethod
    def ready(cls, directory: Path, console: Console) -> Warehouse:
        """Find what is needed; Java and the job's jars are fetched where they are missing.

        Raises:
            OperatorError: the directory is not empty, the extra `etl` is not installed, or something cannot be fetched.
        """
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise WarehouseError(f"--warehouse: {directory} is not empty; give a new directory")
        prepare.require_packages(fetching=True)

        def say(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        return cls(directory.absolute(), prepare.java_home(say), prepare.jars("", say))

    def export(self, venue: Venue, console: Console) -> Tables:
        """Export the history of a performance that has ended, and read what people would read.

        Raises:
            WarehouseError: the job failed, or a transaction is still open that it would have to wait for.
        """
        _settle(venue.dsn)
        given = {"dsn": venue.dsn, "warehouse": self.directory, "format": "parquet", "master": MASTER}
        options = [f"--{name}={value}" for name, value in {**given, "jars": self.jars}.items()]
        console.print("exporting the history …")
        with ProgressDisplay((connections.parameters(venue.dsn).get("password", ""),), console) as progress:
            ended = child.run(["run", *options, "--json"], prepare.environment(self.java_home), progress.hear)
            if ended.code:
                raise WarehouseError(f"the export failed: {progress.last or progress.others}")
        lines = ended.output.strip().splitlines()
        return self.read() if json.loads(lines[-1])["messages"] else Tables([], [], [], [], [])

    def read(self) -> Tables:
        """Read the files that the manifest names, as anybody may."""
        parquet: Any = import_module("pyarrow.parquet")
        manifests = import_module("outbox_etl.warehouse.manifest").LocalManifests(self.directory)
        tables = manifests.newest().tables
        found = [
            [
                row
                for file in tables[name].files
                for row in parquet.read_table(self.directory / file.path, partitioning=None).to_pylist()
            ]
            for name in TABLES
        ]
        return Tables(*found)


def _settle(dsn: str) -> None:
    """Wait until every transaction that is older than now has ended: an export reads no further than the oldest."""
    with connections.connect(dsn, application_name="outbox demo") as conn:
        row = conn.execute(SQL["now"]).fetchone()
        if row is None:
            raise AssertionError("a transaction has an id")
        deadline = time.monotonic() + PATIENCE_S
        while conn.execute(SQL["settled"], {"xid": row[0]}).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise WarehouseError(
                    f"a transaction on this PostgreSQL has been open for {PATIENCE_S:.0f} s, and an export reads "
                    "only what is older\nend it (pg_stat_activity shows it), or let the demo start its own PostgreSQL"
                )
            time.sleep(0.1)
