"""`outbox prove`, run as a user runs it: on servers that others use, with faults, to a verdict; and nothing stays."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from outbox_local.stack.process import Identity, family
from tests.support.waiting import wait_until

# One after the other: each run removes what it finds of one that was killed.
pytestmark = pytest.mark.xdist_group("prove")

LIMIT_S = 150
FLOWS = "messages flow"
STRANGER = "00000000-0000-8000-8000-00000000abcd"
MOVE_ONE = """
UPDATE outbox.publication SET offsets[1] = offsets[1] + 100000
WHERE (epoch, batch) = (SELECT epoch, batch FROM outbox.publication ORDER BY published_at LIMIT 1)
RETURNING (SELECT message_id::text FROM outbox.message m WHERE m.position = positions[1])
"""


@dataclass(frozen=True)
class Prove:
    """Starts runs of one seed on the shared servers."""

    dsn: str
    bootstrap_servers: str
    directory: Path
    seed: int

    @property
    def database(self) -> str:
        return f"outbox_prove_{self.seed}"

    @property
    def topic(self) -> str:
        return f"outbox-prove-{self.seed}"

    def words(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "outbox_relay", "prove", *options]

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        return {
            **clean,
            "OUTBOX_DSN": self.dsn,
            "OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "TMPDIR": str(self.directory),
        }

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.words(*options, "--seed", str(self.seed)),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    @contextmanager
    def started(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start it, and go on when its messages flow."""
        said = self.directory / "said"
        with (
            said.open("w") as lines,
            subprocess.Popen(
                self.words(*options, "--seed", str(self.seed), "--yes", "--json"),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=lines,
                text=True,
            ) as process,
        ):
            try:
                wait_until(
                    lambda: FLOWS in said.read_text() or process.poll() is not None,
                    "messages flow",
                    seconds=LIMIT_S,
                )
                assert FLOWS in said.read_text(), said.read_text()
                yield process
            finally:
                process.kill()

    def left(self) -> set[str]:
        """What is there of it: its database, topic and consumer group, and journals."""
        with psycopg.connect(self.dsn) as conn:
            found = {name for (name,) in conn.execute("SELECT datname FROM pg_database").fetchall()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        found |= set(admin.list_topics(timeout=10).topics)
        found |= {one.group_id for one in admin.list_consumer_groups().result(10).valid}
        return {self.database, self.topic} & found


@pytest.fixture
def prove(database: str, bootstrap_servers: str, tmp_path: Path) -> Iterator[Prove]:
    directory = tmp_path / "temporary"
    directory.mkdir()
    made = Prove(database, bootstrap_servers, directory, secrets.randbelow(999_999) + 1)
    yield made
    if made.left():
        subprocess.run(made.words("--clean"), env=made.environment, timeout=LIMIT_S, check=False)


@pytest.mark.feature("H-63")
def test_a_run_with_kills_is_kept_and_leaves_nothing(prove: Prove, tmp_path: Path) -> None:
    page = tmp_path / "proof.html"
    words = ("--minutes", "0.1", "--faults", "kill", "--rate", "60", "--yes", "--json", "--html", str(page))
    ran = prove.run(*words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["kept"]
    assert told["seed"] == prove.seed
    assert told["faults"]["kill"] >= 1
    assert told["messages"]["committed"] > 150
    assert told["messages"]["rolled_back"] > 2
    assert told["read"] == told["applied"] + told["allowed_repeats"] >= told["messages"]["committed"]
    assert all(one["checked"] > 50 and not one["broken"] for one in told["checks"].values())
    assert f"database {prove.database}" in ran.stderr
    assert not prove.left()
    assert not list(prove.directory.iterdir())
    shown = page.read_text()
    assert "every promise was kept" in shown
    assert f"--seed {prove.seed}" in shown
    assert shown.count("<svg") == 1
    assert shown.count("<rect") > 10
    assert "killed (SIGKILL)" in shown
    assert not re.search(r"(src|href)=|url\(|@import|<script", shown), "it loads nothing"


@pytest.mark.feature("H-63")
def test_what_is_broken_during_a_run_is_found_and_named(prove: Prove) -> None:
    """A record that nobody sent, one that comes again without a fault, a publication row that names another place."""
    with prove.started("--minutes", "0.1", "--faults", "none", "--rate", "60") as process:
        own = psycopg.conninfo.make_conninfo(prove.dsn, dbname=prove.database)
        with psycopg.connect(own, autocommit=True) as conn:
            row = wait_until(lambda: conn.execute(MOVE_ONE).fetchone(), "something is recorded as published")
            again = wait_until(
                lambda: conn.execute(
                    "SELECT message_id::text, key, topic, body FROM outbox.message_status JOIN outbox.message"
                    " USING (message_id, topic, key) WHERE status = 'PUBLISHED' AND message_id <> %s LIMIT 1",
                    row,
                ).fetchone(),
                "another one is published",
            )
        assert row is not None
        assert again is not None
        producer = Producer({"bootstrap.servers": prove.bootstrap_servers, "log_level": 0})
        for message_id in (again[0], STRANGER):
            producer.produce(
                prove.topic,
                key=bytes(again[1]),
                value=bytes(again[3]),
                headers=[("outbox-id", message_id.encode())],
            )
        assert producer.flush(15) == 0
        output = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 1
    told = json.loads(output)
    found = {
        name: [each["message_id"] for each in one["first"]]
        for name, one in told["checks"].items()
        if one["broken"]
    }
    assert not told["kept"]
    assert STRANGER in found["ghost"]
    assert again[0] in found["duplicate"]
    assert row[0] in found["misplaced"]
    assert list(Path(told["journals"]).glob("producer-*.jsonl"))
    assert not prove.left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_and_nothing_on_the_servers_outlives_it(prove: Prove, number: signal.Signals) -> None:
    """After kill -9 it is `--clean` that removes; while a run goes on, it is left alone."""
    with prove.started("--minutes", "2", "--rate", "20") as process:
        children = [each for each in family(process.pid) if each != Identity.of(process.pid)]
        assert len(children) >= 8
        assert subprocess.run(prove.words("--clean"), env=prove.environment, check=False).returncode == 0
        assert prove.left() >= {prove.database, prove.topic}
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    wait_until(lambda: not any(child.alive() for child in children), "all its processes are gone")
    if number is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert prove.left()
        wait_until(lambda: not in_use(prove), "its sessions are gone")
        ran = subprocess.run(
            prove.words("--clean"), env=prove.environment, capture_output=True, text=True, check=True
        )
        assert f"removed database {prove.database}" in ran.stderr
    else:
        assert process.returncode == 128 + number
    assert not prove.left()


def in_use(prove: Prove) -> bool:
    """Whether sessions are there in the database of the run."""
    with psycopg.connect(prove.dsn) as conn:
        query = "SELECT FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        return conn.execute(query, [prove.database]).fetchone() is not None


def test_what_it_may_not_touch_is_refused_before_anything_is_made(prove: Prove) -> None:
    asked = prove.run()
    assert asked.returncode == 2
    assert f"a database {prove.database}" in asked.stderr
    assert "outbox prove --yes" in asked.stderr

    admin = AdminClient({"bootstrap.servers": prove.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(prove.topic, 1, 1)])[prove.topic].result(15)
    try:
        taken = prove.run("--yes")
    finally:
        admin.delete_topics([prove.topic])[prove.topic].result(15)
    assert taken.returncode == 2
    assert f"Kafka has a topic {prove.topic} already" in taken.stderr

    with psycopg.connect(prove.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE prove_guest_{prove.seed} LOGIN PASSWORD 'guest'")
        try:
            guest = psycopg.conninfo.make_conninfo(
                prove.dsn, user=f"prove_guest_{prove.seed}", password="guest"
            )
            refused = Prove(guest, prove.bootstrap_servers, prove.directory, prove.seed).run("--yes")
        finally:
            conn.execute(f"DROP ROLE prove_guest_{prove.seed}")
    assert refused.returncode == 2
    assert "CREATEDB" in refused.stderr
    assert not prove.left()


def test_unknown_faults_are_wrong_options(prove: Prove) -> None:
    ran = prove.run("--faults", "kill,fire", "--yes")
    assert ran.returncode == 2
    assert "kill, pause, stop, disconnect" in ran.stderr
