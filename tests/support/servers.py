"""Fixtures that hand real servers to tests: one shared stack per run, private ones for tests that kill servers.

Where the shared servers come from: OUTBOX_TEST_DSN and OUTBOX_TEST_BOOTSTRAP_SERVERS if set, else containers
when a Docker engine answers, else embedded servers. A test that needs a server fails when none can be had; it
is never skipped.

    database             a migrated database of this test, by its DSN
    make_database        makes further ones; make_database(migrated=False): an empty one
    bootstrap_servers    the shared broker
    topic, make_topic    a topic of this test with 4 partitions; make_topic(partitions=1,
    max_message_bytes="1000") private_stack        servers that this test may kill, stop, pause and start
    (outbox_local.stack.api.Stack) private_database, make_private_database, private_topic, make_private_topic
    the same there

All processes of a run (pytest-xdist) share the shared stack: the first test that needs it starts it, and it
ends with the run, even if pytest is killed. Its PostgreSQL, where it is embedded, does not wait for the disk. A
private stack belongs to one process, is used by one test at a time, and is as durable as `outbox up` makes it.

Tests of Spark that run in several processes share a broker only (see `own_postgres`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.lifecycle import bring_down, bring_up
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.process import Identity
from outbox_local.stack.state import State
from tests.support import xdist_groups
from tests.support.containers import Containers, engine_answers
from tests.support.databases import Databases, hasten_logins, spare_the_disk, surprise
from tests.support.topics import Topics


class MakeDatabase(Protocol):
    """Makes a database and answers its DSN."""

    def __call__(self, *, migrated: bool = True) -> str: ...


class MakeTopic(Protocol):
    """Makes a topic and answers its name; settings as `max_message_bytes="1000"`."""

    def __call__(self, partitions: int = 4, **settings: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Run:
    """What all processes of one run know: its directory, the process it ends with, and servers that exist already."""

    directory: Path
    owner: Identity
    dsn: str
    bootstrap_servers: str

    def options(self) -> StackOptions:
        """What the shared stack shall be; containers are no business of a worker."""
        return StackOptions(self.dsn, self.bootstrap_servers, AllowedOrigins.EMBEDDED)


PRIVATE = "private stack"
"""The xdist_group of the tests that use a private stack."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""For brokers that live for seconds: a start takes a third less processor time without the second compiler, and what
tests give a broker to do never needs it."""
ROOM = 4 << 30
"""Bytes that are free in memory for the data of the shared servers: a tenth of it is used as a rule."""
_RUN = pytest.StashKey[Run]()
_CONTAINERS = pytest.StashKey[Containers]()


class _Node(Protocol):
    """A worker of pytest-xdist, as its steering process sees it."""

    config: pytest.Config
    workerinput: dict[str, Any]


def pytest_configure(config: pytest.Config) -> None:
    """Name the run: made by the process that steers it, handed on to its workers."""
    handed: dict[str, Any] | None = getattr(config, "workerinput", None)
    if handed is not None:
        directory, pid, *given = handed["outbox_run"]
    else:
        directory, pid = tempfile.mkdtemp(prefix="outbox-tests-", dir=_in_memory()), os.getpid()
        Path(directory).chmod(0o711)  # PostgreSQL's user passes through to its data
        given = [os.environ.get(name, "") for name in ("OUTBOX_TEST_DSN", "OUTBOX_TEST_BOOTSTRAP_SERVERS")]
    if handed is None and "spark" not in str(config.getoption("markexpr")).replace("not spark", ""):
        # Java reads it by itself, in every process that a test starts; workers inherit it. Spark needs both compilers.
        os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    owner = Identity.of(pid)
    assert owner is not None, "the process that steers this run is gone"
    config.stash[_RUN] = Run(Path(directory), owner, *given)


def _in_memory() -> Path | None:
    """Where the shared servers' files are in memory, if there is room; None: the usual directory of temporary files.

    Their data ends with the run. On ext4 half of a run's processor time went into finding free inodes: each database of
    a test is some 500 files, and ext4 leaves the inodes of deleted files alone for seconds (`recently_deleted`).
    """
    memory = Path("/dev/shm")
    try:
        free = shutil.disk_usage(memory).free
    except OSError:
        return None
    return memory if free >= ROOM and os.access(memory, os.W_OK | os.X_OK) else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start containers in the steering process, where there is an engine: they end with it, not with a worker.

    Not for a run of unit tests alone, or one that only collects: whether a test needs servers is known to workers
    only, and later.
    """
    config = session.config
    run = config.stash[_RUN]
    units = all("unit" in Path(argument.split("::")[0]).parts for argument in config.args)
    idle = units or config.getoption("collectonly")
    if hasattr(config, "workerinput") or idle or (run.dsn and run.bootstrap_servers) or not engine_answers():
        return
    containers = Containers.start(run.directory)
    config.stash[_CONTAINERS] = containers
    config.stash[_RUN] = replace(
        run,
        dsn=run.dsn or containers.dsn,
        bootstrap_servers=run.bootstrap_servers or containers.bootstrap_servers,
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need servers, so that `-m "not servers"` leaves them out.

    Those that need a private stack go to one process of pytest-xdist: a stack takes longer to start than most of them
    take. Fault tests take longer than a stack, so there each file goes by itself.
    """
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if {"_shared", "_private_stack"} & names:
            item.add_marker("servers")
        if "_private_stack" in names and item.get_closest_marker("xdist_group") is None:
            alone = item.path.stem if "faults" in item.path.parts else ""
            item.add_marker(pytest.mark.xdist_group(f"{PRIVATE} {alone}".strip()))
    xdist_groups.note(items, config.stash[_RUN].directory)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep groups together; None: this run does not group its tests."""
    wanted = config.getoption("dist") == "loadgroup"
    return xdist_groups.scheduling(config, log, config.stash[_RUN].directory) if wanted else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: _Node) -> None:
    """Tell a worker of pytest-xdist about the run."""
    run = node.config.stash[_RUN]
    node.workerinput["outbox_run"] = [str(run.directory), run.owner.pid, run.dsn, run.bootstrap_servers]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what the run started, in the process that steers it: all workers have ended."""
    run = config.stash.get(_RUN, None)
    if run is None or hasattr(config, "workerinput"):
        return
    bring_down(run.directory, with_data=True)
    if _CONTAINERS in config.stash:
        config.stash[_CONTAINERS].stop()
    shutil.rmtree(run.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def _shared(request: pytest.FixtureRequest) -> State:
    run = request.config.stash[_RUN]
    state, started = bring_up(run.directory, run.options(), owner=run.owner)
    if started and state.postgres.kind.embedded:
        spare_the_disk(state.postgres.address)
        hasten_logins(state.postgres.address)
        surprise(state.postgres.address)
    return state


@contextmanager
def own_postgres(config: pytest.Config, shared: State) -> Iterator[State]:
    """The shared stack, but where a run has several processes with a PostgreSQL that only this one uses."""
    run = config.stash[_RUN]
    if not hasattr(config, "workerinput") or run.dsn:
        yield shared
        return
    directory = Path(tempfile.mkdtemp(prefix="worker-", dir=run.directory))
    directory.chmod(0o711)
    options = StackOptions("", shared.kafka.address, AllowedOrigins.EMBEDDED)
    state, _ = bring_up(directory, options, owner=run.owner)
    try:
        spare_the_disk(state.postgres.address)
        hasten_logins(state.postgres.address)
        surprise(state.postgres.address)
        yield state
    finally:
        bring_down(directory, with_data=True)


@pytest.fixture(scope="session")
def _shared_databases(_shared: State, request: pytest.FixtureRequest) -> Iterator[Databases]:
    databases = Databases(_shared.postgres.address, request.config.stash[_RUN].directory)
    with databases.connected():
        yield databases


@pytest.fixture
def make_database(_shared_databases: Databases) -> Iterator[MakeDatabase]:
    """Make databases on the shared PostgreSQL; they are dropped after the test."""
    yield _shared_databases.make
    _shared_databases.drop_made()


@pytest.fixture
def database(make_database: MakeDatabase) -> str:
    """A migrated database of this test: its DSN."""
    return make_database()


@pytest.fixture(scope="session")
def bootstrap_servers(_shared: State) -> str:
    """The shared broker."""
    return _shared.kafka.address


@pytest.fixture(scope="session")
def make_topic(bootstrap_servers: str) -> MakeTopic:
    """Make topics on the shared broker."""
    return Topics(bootstrap_servers).make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of this test, with 4 partitions."""
    return make_topic()


@pytest.fixture(scope="session")
def _private_stack() -> Iterator[Stack]:
    with Stack.start(options=StackOptions(origins=AllowedOrigins.EMBEDDED)) as stack:
        yield stack


@pytest.fixture
def private_stack(_private_stack: Stack) -> Iterator[Stack]:
    """Servers of this process, both running, which this test may kill, stop, pause and start."""
    _revive(_private_stack)
    yield _private_stack
    _revive(_private_stack)


@pytest.fixture
def make_private_database(private_stack: Stack, request: pytest.FixtureRequest) -> Iterator[MakeDatabase]:
    """Make databases on the private PostgreSQL; they are dropped after the test."""
    databases = Databases(private_stack.dsn, request.config.stash[_RUN].directory)
    yield databases.make
    _revive(private_stack)
    databases.drop_made()


@pytest.fixture(scope="session")
def _quiet_databases(_private_stack: Stack, request: pytest.FixtureRequest) -> Databases:
    """Databases beside which nobody has a transaction open, for plans whose cost grows with each."""
    return Databases(_private_stack.dsn, request.config.stash[_RUN].directory)


@pytest.fixture
def private_database(make_private_database: MakeDatabase) -> str:
    """A migrated database on the private PostgreSQL: its DSN."""
    return make_private_database()


@pytest.fixture
def make_private_topic(private_stack: Stack) -> MakeTopic:
    """Make topics on the private broker."""
    return Topics(private_stack.bootstrap_servers).make


@pytest.fixture
def private_topic(make_private_topic: MakeTopic) -> str:
    """A topic with 4 partitions on the private broker."""
    return make_private_topic()


def _revive(stack: Stack) -> None:
    """Bring both servers of a private stack back, whatever a test did to them."""
    stack.resume_postgres()
    stack.resume_kafka()
    stack.start_postgres()
    stack.start_kafka()
