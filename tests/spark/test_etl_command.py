"""`outbox etl` as operators run it: a process, with Spark's Java below it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outbox_etl.session import JAVA, java_program
from tests.support.export_processes import alive, below
from tests.support.plain_inserts import connect, insert_numbered
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

ON_TWO_CORES = ("--master", "local[2]", "--driver-memory", "1g")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "outbox_relay", "etl", *arguments]


def etl(dsn: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `outbox etl …` and insist on its exit code."""
    done = subprocess.run(
        command(*arguments, *ON_TWO_CORES),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PGOPTIONS": "", "OUTBOX_DSN": dsn},
    )
    assert done.returncode == code, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


def test_a_run_fills_the_warehouse_and_the_next_one_goes_on(
    database: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    given = ("--warehouse", str(tmp_path / "warehouse"))
    topic = make_topic()
    with connect(database) as conn:
        insert_numbered(conn, topic, 500)
        first = etl(database, "run", *given, "--json")
        insert_numbered(conn, topic, 300, start=500)
    assert json.loads(first.stdout)["messages"] == 500
    assert "500 messages" in first.stderr
    second = etl(database, "run", *given)
    assert "300" in second.stdout
    status = json.loads(etl(database, "status", *given, "--json").stdout)
    assert status["watermark"]["hi"] > json.loads(first.stdout)["window_hi"]


def test_what_the_job_refuses_is_one_clear_error(tmp_path: Path) -> None:
    secret = "s3cr3t-Pa55"
    done = etl(
        f"postgresql://etl:{secret}@127.0.0.1:1/none", "run", "--warehouse", str(tmp_path / "w"), code=1
    )
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert secret not in done.stdout + done.stderr


def test_java_takes_the_options_of_the_job() -> None:
    """An option of a name or a value that Java does not know would be left out without a word."""
    program = java_program()
    assert program is not None
    shown = subprocess.run(
        [program, *JAVA, "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    flags = {line.split()[1]: line.split()[3] for line in shown.splitlines() if " = " in line}
    given = dict(option.removeprefix("-XX:").split("=") for option in JAVA if "=" in option)
    assert len(given) == 4
    assert {name: flags.get(name) for name in given} == given
    assert flags["UseParallelGC"] == "true"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_spark_ends_with_the_command_however_that_ends(
    database: str, make_topic: MakeTopic, tmp_path: Path, number: signal.Signals
) -> None:
    secret = "catalog-s3cr3t"
    with connect(database) as conn:
        insert_numbered(conn, make_topic(), 100)
        conn.execute("BEGIN")
        conn.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")  # Spark's reads wait for it
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                command("run", "--warehouse", str(tmp_path / "warehouse"), *ON_TWO_CORES,
                    "--catalog-option", f"unused.password={secret}"),
                stdout=log, stderr=log, env={**os.environ, "PGOPTIONS": "", "OUTBOX_DSN": database},
            )  # fmt: skip
        try:
            waiting = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.message'::regclass"
            )
            wait_until(lambda: conn.execute(waiting).fetchone() != (0,), "a read that waits", seconds=120)
            started = below(process.pid)
            lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started]
            [java] = [line.split(b"\0") for line in lines if b"org.apache.spark" in line]
            assert {option.encode() for option in JAVA} <= set(java)
            assert not any(secret.encode() in line for line in lines)
            process.send_signal(number)
            ended = process.wait(30)
            assert ended == (143 if number is signal.SIGTERM else -9)
            wait_until(lambda: not any(alive(pid) for pid in started), "the end of Spark", seconds=30)
        finally:
            process.kill()
            process.wait()
            conn.execute("ROLLBACK")
