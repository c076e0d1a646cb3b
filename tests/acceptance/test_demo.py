"""`outbox demo`, run as a user runs it: real flights, real servers, a relay killed with SIGKILL, and the proof."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from outbox_local.demo import journal
from outbox_local.demo.flights import read_flights
from outbox_local.demo.proof import prove
from outbox_local.demo.sabotage import Sabotage, sabotage
from outbox_local.stack.process import Identity, family
from tests.support.waiting import wait_until

# One at a time: a demo takes the first number that is free, and its database's sessions are found by that name.
pytestmark = pytest.mark.xdist_group("demo")

FLIGHTS = 2_000
SEED = 7
LIMIT_S = 300
END_ONE_SESSION = r"""
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = 'outbox demo producer' and datname like 'outbox\_demo\_%' and query ~ 'COMMIT|outbox.message'
    and random() < 0.1
limit 1
"""


@dataclass(frozen=True)
class Demo:
    """Starts demos on the shared servers."""

    dsn: str
    bootstrap_servers: str
    temporary: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        return {
            **clean,
            "OUTBOX_DSN": self.dsn,
            "OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "TMPDIR": str(self.temporary),
        }

    @staticmethod
    def words(*options: str) -> list[str]:
        return [sys.executable, "-m", "outbox_relay", "demo", "--seed", str(SEED), *options]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*options),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def demo(database: str, bootstrap_servers: str, tmp_path: Path) -> Demo:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return Demo(database, bootstrap_servers, temporary)


@pytest.fixture
def left_behind(database: str, bootstrap_servers: str) -> Callable[[str], set[str]]:
    """Which of the database and the topic that a demo said it made are still there."""

    def left_behind(output: str) -> set[str]:
        said = re.search(r"database (outbox_demo_\d+) and topic (flights-\d+) ", output)
        assert said is not None, output
        with psycopg.connect(database) as conn:
            rows = conn.execute("select datname from pg_database").fetchall()
        topics = AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=10).topics
        return {said[1], said[2]} & ({row[0] for row in rows} | set(topics))

    return left_behind


@pytest.mark.feature("S-104")
def test_every_committed_flight_arrives_in_order_and_no_rolled_back_one(
    demo: Demo, tmp_path: Path, left_behind: Callable[[str], set[str]]
) -> None:
    journals = tmp_path / "journals"
    report = tmp_path / "flights.html"
    ran = demo.run("--flights", str(FLIGHTS), "--json", "--journals", str(journals), "--report", str(report))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("what an operator sees of it: http://127.0.0.1:") == 1
    told = json.loads(ran.stdout)
    assert told["proven"]
    assert told["counts"]["committed"] + told["counts"]["rolled_back"] == FLIGHTS
    assert told["counts"]["rolled_back"] > FLIGHTS * 0.02
    assert told["counts"]["read"] == told["counts"]["committed"] + told["counts"]["repeated_after_the_kill"]
    assert told["figures"]["recovery_s"] > 0
    assert told["figures"]["contended"] > 0
    assert report.read_text().count("<svg") == 3
    wait_until(lambda: not left_behind(ran.stderr), "its database and topic are gone")
    assert not list(demo.temporary.iterdir())

    # What was recorded is proof by itself, and fails as soon as one message is tampered with.
    source = read_flights(FLIGHTS)
    crash = journal.crash(journals / "relay.jsonl")
    records = list(journal.records(journals / "consumer.jsonl"))
    producers = sorted(journals.glob("producer-*.jsonl"))
    assert prove(source, journal.entries(producers), records, seed=SEED, crash=crash).holds
    for kind in Sabotage:
        wrecked = sabotage(records, kind, SEED)
        proof = prove(source, journal.entries(producers), wrecked, seed=SEED, crash=crash)
        named = [text for claim in proof.claims.values() for text in claim.offenders]
        assert not proof.holds
        assert any("(row " in text for text in named), kind


def test_a_sabotaged_transport_makes_it_fail_and_name_the_flight(demo: Demo, tmp_path: Path) -> None:
    ran = demo.run("--flights", "500", "--sabotage", "drop", "--journals", str(tmp_path / "journals"))
    assert ran.returncode == 1, ran.stderr
    assert "NOT PROVEN" in ran.stdout
    (line,) = [line for line in ran.stdout.splitlines() if "never arrived" in line]
    assert "(row " in line


def test_a_slice_that_is_over_before_the_next_relay_runs_is_proven_too(demo: Demo) -> None:
    ran = demo.run("--flights", "100", "--producers", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "PROVEN" in ran.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_it(
    demo: Demo, left_behind: Callable[[str], set[str]], number: signal.Signals
) -> None:
    with subprocess.Popen(
        demo.words("--rate", "200"),
        env=demo.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        shown = ""
        while ", consumed" not in shown:
            line = process.stdout.readline()
            assert line, f"it ended early: {shown}"
            shown += line
        children = [identity for identity in family(process.pid) if identity != Identity.of(process.pid)]
        assert len(children) >= 6  # four producers, a relay, a consumer
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) != 0
    wait_until(lambda: not any(child.alive() for child in children), "all its processes are gone")
    if number != signal.SIGKILL:
        wait_until(lambda: not left_behind(shown), f"its database and topic are gone; it said: {rest}")


def test_producers_whose_sessions_are_terminated_lose_nothing(
    demo: Demo, database: str, tmp_path: Path
) -> None:
    """Whatever a session was doing when it was ended, COMMIT included: the proof still holds."""
    output = tmp_path / "output"
    ended = 0
    with psycopg.connect(database, autocommit=True) as conn, output.open("w") as file:
        process = subprocess.Popen(
            demo.words("--flights", "1000", "--rate", "250"),
            env=demo.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )

        def gone() -> bool:
            nonlocal ended
            ended += len(conn.execute(END_ONE_SESSION).fetchall())
            return process.poll() is not None

        wait_until(gone, "the demo has ended", seconds=LIMIT_S)
    assert process.returncode == 0, output.read_text()
    assert ended > 10


def test_a_role_that_may_not_create_databases_is_refused_with_the_next_step(
    database: str, bootstrap_servers: str, tmp_path: Path
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create role demo_guest login password 'guest'")
    try:
        guest = psycopg.conninfo.make_conninfo(database, user="demo_guest", password="guest")
        ran = Demo(guest, bootstrap_servers, tmp_path).run("--flights", "100")
    finally:
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute("drop role demo_guest")
    assert ran.returncode == 1
    assert "CREATEDB" in ran.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--flights", "99"], "100<=x<=336776"),
        (["--producers", "0"], "1<=x<=32"),
        (["--repot", "x"], "--report"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(
    options: list[str], said: str, tmp_path: Path
) -> None:
    ran = Demo("", "", tmp_path).run(*options)
    assert ran.returncode == 2
    assert said in ran.stderr


@pytest.mark.parametrize("option", ["--journals", "--warehouse"])
def test_what_is_left_needs_an_empty_directory(option: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    ran = Demo("", "", tmp_path).run(option, str(tmp_path))
    assert ran.returncode == 1
    assert "is not empty" in ran.stderr
    assert (tmp_path / "mine").read_text() == "kept"
