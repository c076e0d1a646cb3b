"""The whole way of a message into the warehouse, once and small: sent, published, exported, proven, read without Spark.

All else about the warehouse is in `tests/spark`. CI runs this test and those marked `gate`, `make spark` runs all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from pyiceberg.table import StaticTable

from outbox import Message, Outbox
from outbox_relay.warehouse import prepare
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, decide, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.small_spark import SMALL

PROGRAM = Path(__file__).parents[1] / "support/warehouse_job.py"


class Job:
    """One process with one Java, which does one command after the other."""

    def __init__(self, *given: str) -> None:
        # As `outbox etl` does: what the machine does not have is fetched.
        environment = prepare.environment(prepare.java_home(_say))
        self._given = [*given, *SMALL, f"--jars={prepare.jars('', _say)}", "--json"]
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def do(self, command: str, *more: str) -> dict[str, Any]:
        """Run a command of the job; answer what it answered, with its exit code."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{json.dumps([command, *self._given, *more])}\n")
        stdin.flush()
        answer: dict[str, Any] = {}
        while "exit_code" not in answer:
            line = stdout.readline()
            assert line, f"the job ended with {self._process.wait(10)}"
            answer |= json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # (Java ends with its standard input)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


@pytest.fixture
def job(private_database: str, tmp_path: Path) -> Iterator[Job]:
    """The job for this test's outbox and a warehouse of its own.

    On private servers: a transaction that another test leaves open would hold the export back.
    """
    with Job(f"--dsn={private_database}", f"--warehouse={tmp_path / 'warehouse'}") as job:
        yield job


@pytest.mark.spark
@pytest.mark.gate
def test_what_was_published_is_exported_proven_complete_and_read_without_spark(
    private_database: str,
    private_stack: Any,
    make_private_topic: MakeTopic,
    job: Job,
    tmp_path: Path,
) -> None:
    brokers = private_stack.bootstrap_servers
    topic = make_private_topic(partitions=2)
    outbox = Outbox(producer_group="shop")
    with connect(private_database) as conn, RelayProcess(private_database, brokers) as relay:
        for number in range(20):
            with conn.transaction():
                outbox.send(conn, Message(topic, key=f"k{number % 3}", body=json.dumps({"n": number})))
        half = insert(conn, topic, "k0", "a half message", state="UNKNOWN", producer_group="shop")
        wait_published(conn)
        first = job.do("run")
        assert (first["messages"], first["exit_code"]) == (21, 0)
        assert decide(conn, half, "COMMITTED") == 1
        insert(conn, topic, "k1", "of the second window")
        wait_published(conn)
        relay.stop()
    second = job.do("run")
    assert second["window_lo"] == first["window_hi"]
    proven = job.do("reconcile", f"--bootstrap-servers={brokers}")
    assert proven["exit_code"] == 0, proven
    assert (proven["certified"], proven["problems"], proven["records"]) == (True, 0, 22)
    found = StaticTable.from_metadata(str(tmp_path / "warehouse" / "outbox" / "message_history")).scan()
    rows = {
        (row["message_id"], row["partition"], row["offset"], row["key"], row["body"])
        for row in found.to_arrow().to_pylist()
        if row["status"] == "PUBLISHED"
    }
    records = read_topic(brokers, topic)
    assert rows == {(each.message_id, each.partition, each.offset, each.key, each.value) for each in records}
    assert len(records) == 22
