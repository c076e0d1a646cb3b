"""One Spark for the tests of the export; each test has a session, and with it a catalog, of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outbox_etl.session import start
from outbox_etl.warehouse.iceberg_merge import Made
from outbox_local.stack.state import State
from outbox_relay.warehouse import prepare
from tests.support.databases import Databases
from tests.support.export_runs import Exports, base_settings
from tests.support.mart_rows import Warehouse, start_spark
from tests.support.message_streams import Stream
from tests.support.recorded_by_hand import MakeWorld, worlds
from tests.support.refused_jobs import Job, World
from tests.support.servers import MakeDatabase, own_postgres


@pytest.fixture(scope="session")
def _shared(_shared: State, request: pytest.FixtureRequest) -> Iterator[State]:
    """A PostgreSQL for each process: a window ends at its server's oldest transaction, whichever test has it open."""
    with own_postgres(request.config, _shared) as state:
        yield state


@pytest.fixture(scope="module")
def small_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark on two threads; compiling costs more than it brings for a handful of rows."""
    with pytest.MonkeyPatch.context() as patch:
        if home := prepare.java_home(lambda _: None):
            patch.setenv("JAVA_HOME", home)
        spark = start(base_settings(tmp_path_factory.mktemp("base")))
        yield spark
        spark.stop()


@pytest.fixture
def make_exports(small_spark: SparkSession, tmp_path: Path) -> Callable[..., Exports]:
    """Give a test warehouses of its own, each by its DSN, a name and its settings."""

    def make(dsn: str, name: str = "warehouse", **options: str) -> Exports:
        return Exports(small_spark, dsn, tmp_path / name, options)

    return make


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """An outbox to which nothing has happened."""
    stream = Stream(database, 1)
    yield stream
    stream.close()


@pytest.fixture
def job(
    small_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Job:
    """Runs commands of the job, in a session of their own of this Spark."""
    return Job(small_spark, monkeypatch, capsys)


@pytest.fixture
def make_world(
    small_spark: SparkSession, make_database: MakeDatabase, tmp_path: Path
) -> Iterator[Callable[..., World]]:
    """Make outboxes to which something has happened, each with a warehouse; `dsn` and `place` may be given."""
    made: list[World] = []

    def make(form: str = "parquet", *, dsn: str = "", place: Path | None = None) -> World:
        made.append(World(small_spark, dsn or make_database(), place or tmp_path / "warehouse", form))
        made[-1].happens()
        return made[-1]

    yield make
    for world in made:
        world.stream.close()


@pytest.fixture(scope="module")
def module_worlds(
    small_spark: SparkSession,
    _shared_databases: Databases,
    bootstrap_servers: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MakeWorld]:
    """Make outboxes whose relay is the test itself; they live as long as the tests of the module."""
    directory = tmp_path_factory.mktemp("worlds")
    with worlds(small_spark, _shared_databases, bootstrap_servers, directory) as make:
        yield make


@pytest.fixture(scope="module")
def mart_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark for warehouses whose rows the tests write themselves."""
    spark = start_spark(tmp_path_factory.mktemp("base"))
    yield spark
    spark.stop()


@pytest.fixture
def warehouse(mart_spark: SparkSession, tmp_path: Path) -> Warehouse:
    """A warehouse whose rows the test writes itself."""
    return Warehouse(mart_spark, tmp_path / "warehouse")


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    """The merges that DuckDB has made."""
    commits, kept = list[Made](), Made.commit

    def commit(self: Made, branch: str, properties: dict[str, str]) -> None:
        commits.append(self)
        kept(self, branch, properties)

    monkeypatch.setattr(Made, "commit", commit)
    return commits
