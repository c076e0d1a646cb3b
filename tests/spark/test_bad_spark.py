"""A Spark whose Java dies, or whose own disk is full: one clear line, and nothing visible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.export_runs import jars
from tests.support.memory_disks import mounted
from tests.support.refused_jobs import MakeWorld, World, in_mid_read
from tests.support.small_spark import QUICK
from tests.support.spark_marks import MARKS

pytestmark = MARKS
DRIVER = b"org.apache.spark.deploy.SparkSubmit"


def start(world: World, *arguments: str) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    quick = [f"--spark={name}={value}" for name, value in QUICK.items()]
    given = (*world.given, "--jars", ",".join(jars()), "--driver-memory", "1g", "--json", *quick, *arguments)
    return subprocess.Popen(
        [sys.executable, "-m", "outbox_etl", "run", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTBOX_DSN": ""},
        start_new_session=True,
    )


def ends(process: subprocess.Popen[str], code: int) -> dict[str, Any]:
    """Wait for its end, insist on the exit code, and answer what it answered."""
    try:
        out, err = process.communicate(timeout=300)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == code, f"{out}{err}"
    assert "Traceback" not in err
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def javas(above: int, of: bytes) -> list[int]:
    """The processes of Java below a process that run this class."""
    found = []
    for task in Path(f"/proc/{above}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            is_one = of in Path(f"/proc/{child}/cmdline").read_bytes()
            found += [child] if is_one else javas(child, of)
    return found


def test_a_java_that_is_killed_is_named_and_nothing_is_visible(make_world: MakeWorld) -> None:
    world = make_world("parquet")

    def strike(conn: psycopg.Connection[Any]) -> None:
        os.kill(javas(process.pid, DRIVER)[0], signal.SIGKILL)

    process = start(world, "--master", "local[2]")
    with in_mid_read(world.dsn, strike):
        answer = ends(process, 1)
    assert answer["kind"] == "SparkError"
    assert "Java ended during the run" in answer["error"]
    assert "run again" in answer["error"]
    assert world.history() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB, less than the jars have."""
    with mounted(tmp_path / "disk", "size=8m", in_use=True) as place:
        yield place


def test_a_spark_without_room_for_its_own_files_names_their_directory(
    make_world: MakeWorld, small_disk: Path
) -> None:
    world = make_world("parquet")
    process = start(world, "--master", "local[2]", "--spark", f"spark.local.dir={small_disk}")
    answer = ends(process, 1)
    assert "no space left" in answer["error"]
    assert "spark.local.dir" in answer["error"]
    assert world.history() == []
