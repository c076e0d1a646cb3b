"""`outbox etl` maps its options onto the job's, shows no password, and says what to install."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outbox.extras import install_line
from outbox_etl.main import parser
from outbox_relay.cli.etl.progress import SAID, ProgressDisplay
from outbox_relay.warehouse import child, jars, prepare
from outbox_relay.warehouse.job import STAGES
from tests.support.outbox_command import Ran, outbox
from tests.support.waiting import wait_until

SECRET = "s3cr3t-Pa55"
DSN = f"postgresql://etl:{SECRET}@localhost:5432/shop"
GIVEN = ("--warehouse", "/data/warehouse", "--dsn", DSN)


class Job:
    """Stands where the job's process would: remembers what it was given, answers what it was told to."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.environment: dict[str, str] = {}
        self.said: list[str] = []
        self.ends = child.Ended(0, "{}\n")

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], None]
    ) -> child.Ended:
        self.arguments, self.environment = list(arguments), dict(environment)
        for line in self.said:
            hear(line)
        return self.ends

    def answers(self, answer: Mapping[str, Any], code: int = 0) -> None:
        self.ends = child.Ended(code, f"{json.dumps(answer)}\n")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job()
    monkeypatch.setattr(child, "run", made.run)
    monkeypatch.setattr(prepare, "require_packages", lambda *, fetching: None)
    monkeypatch.setattr(prepare, "java_home", lambda report: None)
    monkeypatch.setattr(prepare, "jars", lambda given, report: given or "/cache/a.jar,/cache/b.jar")
    return made


def text(ran: Ran) -> str:
    return ran.out + ran.err


@pytest.mark.parametrize("command", ["run", "backfill", "marts", "status"])
def test_every_option_reaches_the_job_as_it_was_given(job: Job, command: str) -> None:
    ran = outbox("etl", command, *GIVEN, "--format", "iceberg", "--catalog", "rest", "--catalog-uri", "http://c",
        "--catalog-option", "credential=a=b", "--catalog-option", "scope=x", "--master", "spark://m:7077",
        "--driver-memory", "3g", "--partitions", "7", "--fetch-size", "10", "--slice-rows", "2000",
        "--spark", "spark.executor.memory=4g")  # fmt: skip
    assert ran.code == 0, ran.err
    found = parser().parse_args(job.arguments)
    assert (found.command, found.dsn, found.warehouse, found.json) == (command, DSN, "/data/warehouse", True)
    assert (found.format, found.catalog, found.catalog_uri) == ("iceberg", "rest", "http://c")
    assert found.catalog_option == ["credential=a=b", "scope=x"]
    assert (found.master, found.driver_memory, found.partitions) == ("spark://m:7077", "3g", 7)
    assert (found.fetch_size, found.slice_rows, found.spark) == (10, 2000, ["spark.executor.memory=4g"])
    assert found.jars == "/cache/a.jar,/cache/b.jar"


def test_a_rebase_reaches_the_job(job: Job) -> None:
    outbox("etl", "backfill", "--rebase", *GIVEN)
    assert parser().parse_args(job.arguments).rebase
    outbox("etl", "backfill", *GIVEN)
    assert not parser().parse_args(job.arguments).rebase


def test_what_reconcile_may_let_pass_reaches_the_job(job: Job) -> None:
    ran = outbox("etl", "reconcile", *GIVEN, "--bootstrap-servers", "k:9092", "--all", "--limit", "5",
        "--exactly-once", "--shared-topics", "--kafka-config", f"sasl.password={SECRET}=")  # fmt: skip
    assert ran.code == 0, ran.err
    assert set(job.arguments) >= {
        "--bootstrap-servers=k:9092", "--all", "--limit=5", "--exactly-once", "--shared-topics",
        f"--kafka-config=sasl.password={SECRET}=",
    }  # fmt: skip


def test_everything_may_come_from_the_environment(job: Job) -> None:
    ran = outbox("etl", "run", OUTBOX_DSN=DSN, OUTBOX_WAREHOUSE="~/w", OUTBOX_ETL_MASTER="local[2]",
        OUTBOX_ETL_JARS="/my.jar")  # fmt: skip
    assert ran.code == 0, ran.err
    assert {f"--warehouse={Path.home()}/w", "--master=local[2]", "--jars=/my.jar"} <= set(job.arguments)


def test_unless_told_otherwise_it_runs_on_all_cores_of_this_machine(job: Job) -> None:
    outbox("etl", "run", *GIVEN)
    assert "--master=local[*]" in job.arguments


def test_without_a_warehouse_it_says_how_to_name_one(job: Job) -> None:
    ran = outbox("etl", "run", "--dsn", DSN, OUTBOX_WAREHOUSE="")
    assert ran.code == 2
    assert "OUTBOX_WAREHOUSE" in ran.err
    assert not job.arguments


def test_no_password_is_shown_whoever_says_it(job: Job) -> None:
    job.said = [
        f"{SAID}reading {DSN}",
        f"org.postgresql.util.PSQLException: {SECRET}",
        f"{SAID}password {SECRET}",
    ]
    job.ends = child.Ended(1, "")
    shown = text(outbox("etl", "run", *GIVEN)) + text(outbox("etl", "run", *GIVEN, "--json"))
    assert "PSQLException" in shown
    assert SECRET not in shown
    job.answers({"error": f"no {SECRET}", "kind": "SourceError"}, 1)
    assert SECRET not in text(outbox("etl", "run", *GIVEN)) + text(outbox("etl", "run", *GIVEN, "--json"))


def test_a_pair_that_is_half_a_password_is_refused_without_being_repeated(job: Job) -> None:
    ran = outbox("etl", "run", *GIVEN, "--catalog-option", SECRET)
    assert ran.code == 2
    assert SECRET not in text(ran)


def test_a_process_list_shows_no_argument_of_the_job(tmp_path: Path) -> None:
    script = "from outbox_relay.warehouse import child\nimport subprocess, sys\n"
    script += "seen = []\nreal = subprocess.Popen\n"
    script += (
        "def spy(command, **rest):\n    seen.append((command, rest))\n    return real(command, **rest)\n"
    )
    script += "subprocess.Popen = spy\n"
    script += f"ended = child.run(['run', '--dsn={DSN}'], {{'PATH': ''}}, print)\n"
    script += f"assert {SECRET!r} not in repr(seen), seen\nsys.exit(ended.code)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr  # the job ran, and refused: it was given no warehouse
    assert "no warehouse given" in done.stdout


def test_json_is_the_job_s_answer_and_nothing_else(job: Job) -> None:
    answer = {"target": "/w", "window_lo": 3, "window_hi": 9, "messages": 1234, "seconds": 1.5}
    job.said = [f"{SAID}window of transactions 3 to 9"]
    job.answers(answer)
    ran = outbox("etl", "run", *GIVEN, "--json")
    assert ran.json == answer
    assert "window of transactions 3 to 9" in ran.err
    people = outbox("etl", "run", *GIVEN)
    assert "1,234" in people.out


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_the_job_s_exit_code_is_ours(job: Job, code: int) -> None:
    job.answers({"target": "/w", "problems": code}, code)
    assert outbox("etl", "run", *GIVEN, "--json").code == code


def test_an_error_is_told_once(job: Job) -> None:
    job.said = [f"{SAID}the warehouse is full"]
    job.answers({"error": "the warehouse is full", "kind": "TargetError"}, 1)
    ran = outbox("etl", "run", *GIVEN)
    assert ran.code == 1
    assert text(ran).count("the warehouse is full") == 1


@pytest.mark.parametrize("code", [0, 137])
def test_a_job_that_ends_without_an_answer_has_failed(job: Job, code: int) -> None:
    job.said = ["java.lang.OutOfMemoryError: Java heap space"]
    job.ends = child.Ended(code, "")
    ran = outbox("etl", "run", *GIVEN)
    assert ran.code == (code or 1)
    assert "OutOfMemoryError" in ran.err
    assert outbox("etl", "run", *GIVEN, "--json").json["kind"] == "Crash"


def test_a_stopped_run_ends_as_shells_expect(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> child.Ended:
        raise child.SignalReceived(signal.SIGTERM)

    monkeypatch.setattr(child, "run", stopped)
    ran = outbox("etl", "run", *GIVEN)
    assert ran.code == 143
    assert "SIGTERM" in ran.err


def test_problems_are_shown_with_message_and_place(job: Job) -> None:
    finding = {"kind": "missing", "store": "kafka", "message_id": "11111111-2222-4333-8444-555555555555",
        "topic": "orders", "partition": 3, "offset": 42, "detail": "is not where it should be"}  # fmt: skip
    row = {"topic": "orders", "partition": 3, "postgres": 5, "kafka": 4, "warehouse": 5,
        "postgres_checksum": "a", "kafka_checksum": "b", "warehouse_checksum": "a"}  # fmt: skip
    job.answers({"target": "/w", "window_lo": 0, "window_hi": 9, "messages": 5, "records": 4, "problems": 1,
        "found": [finding], "partitions": [row], "certified": False, "seconds": 1.0}, 1)  # fmt: skip
    ran = outbox("etl", "reconcile", *GIVEN, "--bootstrap-servers", "k:9092")
    assert ran.code == 1
    assert "11111111-2222-4333-8444-555555555555 orders[3]@42" in ran.out
    assert "differ" in ran.out
    assert "NOT certified" in ran.out


def test_an_empty_warehouse_says_what_fills_it(job: Job) -> None:
    job.answers({"target": "/w", "watermark": None})
    assert "outbox etl run" in outbox("etl", "status", *GIVEN).out


def test_without_pyspark_it_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyspark" else found(name, *rest)
    )
    ran = outbox("etl", "run", *GIVEN)
    assert ran.code == 1
    assert install_line("etl") in ran.err
    assert SECRET not in text(ran)


def test_the_jars_are_those_that_the_job_names() -> None:
    assert {jar.artifact for jar in jars.pinned()} == {"iceberg-spark-runtime-4.1_2.13", "postgresql"}
    assert all(len(jar.sha256) == 64 for jar in jars.pinned())


def test_a_java_that_is_too_old_does_not_come_before_the_one_that_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    found = prepare.java_home(lambda _: None)
    assert found == str(home)
    assert prepare.environment(found)["JAVA_HOME"] == str(home)


def test_stages_are_shown_by_partition() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with ProgressDisplay(console=console) as progress:
        progress.hear(STAGES + json.dumps([{"stage": 4, "tasks": 16, "done": 5, "failed": 1}]))
        wait_until(lambda: "stage 4: 5 of 16 partitions (1 failed)" in screen.getvalue(), "the stage")


def test_a_line_that_java_wrote_into_ends_no_run(job: Job) -> None:
    job.said = [f'{STAGES}[{{"stage": 4, WARN NativeCodeLoader', f"{SAID}done"]
    job.answers({"target": "/w"})
    assert outbox("etl", "run", *GIVEN).code == 0


def test_sigterm_ends_the_job_and_what_it_started(tmp_path: Path) -> None:
    """The group stands for the job and its Java: both are gone when the command is."""
    package = tmp_path / "outbox_etl"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(
        "import os, subprocess, sys, time\n"
        "def main(arguments):\n"
        "    other = subprocess.Popen(['sleep', '600'])\n"
        "    sys.stderr.write(f'pids {os.getpid()} {other.pid}\\n')\n"
        "    sys.stderr.flush()\n"
        "    time.sleep(600)\n"
    )
    script = (
        "import os, sys\nfrom outbox_relay.warehouse import child\n"
        "try:\n    child.run([], os.environ, lambda line: print(line, flush=True))\n"
        "except child.SignalReceived as stopped:\n    sys.exit(128 + stopped.number)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    watchdog = threading.Timer(60, parent.kill)
    watchdog.start()
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()[1:]]
    parent.terminate()
    assert parent.wait(30) == 143
    watchdog.cancel()
    parent.stdout.close()
    assert len(pids) == 2
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
