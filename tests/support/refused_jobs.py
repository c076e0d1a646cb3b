"""The job's own command line over a Spark that is there already, and what it must say when it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from pyspark.sql import SparkSession

from outbox_etl import session
from outbox_etl.main import main
from outbox_etl.options.settings import Settings
from outbox_etl.warehouse import mart_tables, marts
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports, Rows
from tests.support.message_streams import Stream
from tests.support.plain_inserts import connect
from tests.support.waiting import wait_until

SECRET = "s3cr3t-Pa55"
WAITS = """
    SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE NOT l.granted AND a.application_name = 'outbox-etl' AND a.datname = current_database()
"""


class Told(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    answer: dict[str, Any]
    err: str


class Job:
    """Runs commands of the job as `python -m outbox_etl` does, each in a session of its own of one Spark."""

    def __init__(
        self, spark: SparkSession, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._spark, self._capture = spark, capture
        patch.setattr(session, "start", self._session)
        refresh = marts.refresh
        # A run's marts take most of its time; whoever asks for them has the command `marts`.
        patch.setattr(
            marts,
            "refresh",
            lambda *given, everything=False: (
                refresh(*given, everything=True) if everything else marts.MartsOfRun()
            ),
        )

    def __call__(self, *arguments: str) -> Told:
        """Run a command."""
        self._capture.readouterr()
        code = main([*arguments, "--json", "--partitions=2"])
        out, err = self._capture.readouterr()
        return Told(code, json.loads(out.splitlines()[-1]), err)

    def succeeds(self, *arguments: str) -> Told:
        """Run a command and insist on its success."""
        told = self(*arguments)
        assert told.code == 0, told
        return told

    def refuses(self, *arguments: str, kind: str, words: tuple[str, ...]) -> str:
        """Run a command and insist on one clear line, that holds these words and no secret; answer it."""
        told = self(*arguments)
        assert (told.code, told.answer.get("kind")) == (1, kind), told
        line = str(told.answer["error"])
        assert "\n" not in line
        assert told.err.splitlines()[-1] == f"outbox-etl: {line}"
        assert not (absent := [word for word in words if word not in line]), f"{absent} not in: {line}"
        assert SECRET not in told.err + json.dumps(told.answer)
        assert "Traceback" not in told.err
        return line

    def _session(self, settings: Settings) -> SparkSession:
        spark = self._spark.newSession()
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        if settings.format == "iceberg":
            session.use_catalog(spark, settings)
        setattr(spark, "stop", lambda: None)  # noqa: B010  (the next command needs this Spark)
        return spark


class World:
    """An outbox to which things happen, and a warehouse that is filled from it."""

    def __init__(self, spark: SparkSession, dsn: str, place: Path, form: str) -> None:
        self.dsn, self.place, self._form = dsn, place, form
        self.stream, self._spark = Stream(dsn, 5), spark

    @property
    def given(self) -> tuple[str, ...]:
        """The options that name both."""
        return ("--dsn", self.dsn, "--warehouse", str(self.place), "--format", self._form)

    def happens(self) -> None:
        """Let something happen to every part of the outbox, and end all of it."""
        stream = self.stream
        for act in (
            stream.send,
            stream.half,
            stream.publish,
            stream.check,
            stream.decide,
            stream.delay,
            stream.die,
        ):
            act()
        stream.settle()

    def history(self, hi: int | None = None) -> Rows:
        """What message_history shows, of the windows up to `hi`; nothing, where there is none."""
        exports = self._exports()
        condition = "true" if hi is None else f"window_hi <= {hi}"
        return exports.rows(MESSAGE_HISTORY, condition) if exports.target.watermark() else []

    def rows(self, name: str) -> list[Any]:
        """The rows of a table by its name."""
        [table] = [each for each in mart_tables.MARTS if each.name == name]
        return list(self._exports().target.read(table).collect())

    def is_true(self) -> None:
        """Insist that the warehouse is what PostgreSQL holds."""
        found = self._exports().tables()
        for name, rows in self.stream.truth().items():
            assert found[name] == rows, name

    def _exports(self) -> Exports:
        return Exports(self._spark, self.dsn, self.place, {"format": self._form})


MakeWorld = Callable[..., World]
"""See the fixture `make_world`."""


def waiting(conn: psycopg.Connection[Any]) -> int:
    """How many of the job's sessions wait for a lock; also where this one is in a transaction."""
    conn.execute(
        "SELECT pg_stat_clear_snapshot()"
    )  # the sessions are seen as they were when they were looked at first
    row = conn.execute(WAITS).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def in_mid_read(dsn: str, strike: Callable[[psycopg.Connection[Any]], None]) -> Iterator[None]:
    """Strike when the job's reads of outbox.message have begun: they wait for a lock, so that none can be over."""
    with connect(dsn) as conn:
        conn.execute("BEGIN")
        conn.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
        failed: list[BaseException] = []
        over = threading.Event()

        def waits() -> bool:
            return over.is_set() or waiting(conn) > 0

        def wait_and_strike() -> None:
            try:
                wait_until(waits, "a read that waits")
                assert not over.is_set(), "the job ended before it read"
                strike(conn)
            except BaseException as error:  # noqa: BLE001  (raised again below, where the test sees it)
                failed.append(error)

        thread = threading.Thread(target=wait_and_strike)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            conn.close()
        if failed:
            raise failed[0]
