"""Each command of the export that opens PostgreSQL needs the role outbox_etl, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.logins import Logins
from tests.support.plain_inserts import connect, insert_numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.small_spark import SMALL

pytestmark = pytest.mark.spark


def test_each_command_works_as_the_role_that_its_help_names(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, tmp_path: Path, logins: Logins
) -> None:
    with RelayProcess(database, bootstrap_servers), connect(database) as conn:
        insert_numbered(conn, make_topic(), 50)
        wait_published(conn)
    dsn = logins.make("outbox_etl")
    for words in ("run", "reconcile", "reconcile --all", "status", "backfill"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "outbox_relay", "etl", *words.split(), *SMALL),
                *("--warehouse", str(tmp_path / "warehouse")),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PGOPTIONS": "",
                "OUTBOX_DSN": dsn,
                "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers,
            },
        )
        said = done.stdout + done.stderr
        assert (done.returncode, "permission denied" in said) == (0, False), f"{words}:\n{said}"
