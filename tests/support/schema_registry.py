"""A schema registry of this test process: Apicurio Registry, which has the REST interface of Confluent's.

Confluent's own is in no package registry. This one is an archive of a Maven repository, pinned by its hash, fetched
once into the download cache (109 MB), and run by Java 17 with its data in memory: 5 s, 200 MB.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from outbox.codecs.schemas import SchemaRegistry
from outbox_local.stack.ports import LOOPBACK, Reservation
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.download import download
from outbox_relay.downloads.jar_list import Jar
from outbox_relay.downloads.java import find_java
from outbox_relay.downloads.wheels import java_from_wheel
from tests.support.pausing import pause
from tests.support.second_broker import DIE_WITH_PARENT
from tests.support.waiting import wait_until

ARCHIVE = Jar(
    "io.apicurio",
    "apicurio-registry-app",
    "3.0.9",
    "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43",
    "-all.tar.gz",
)
PATH = "/apis/ccompat/v7"
"""Where it serves Confluent's interface."""


def registry_program() -> Path:
    """Fetch the registry once and return its jar, next to which are those that it needs."""

    def fill(target: Path) -> None:
        download([ARCHIVE], target, lambda done, total: None, instead="a cache that has it in OUTBOX_CACHE")
        packed = target / ARCHIVE.file_name
        with tarfile.open(packed) as archive:
            archive.extractall(target, filter="data")
        packed.unlink()

    place = cached(f"{ARCHIVE.artifact}-{ARCHIVE.version}-{ARCHIVE.sha256[:8]}", fill)
    return place / f"{ARCHIVE.artifact}-{ARCHIVE.version}-runner.jar"


class RegistryServer:
    """A registry without a login on a port of this machine."""

    def __init__(self, place: Path) -> None:
        self._port = Reservation()
        self._log = place / "registry.log"
        java = find_java().path or java_from_wheel()
        options = [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self._port.port}", "-Xmx256m"]
        command = [str(java), *options, "-jar", str(registry_program())]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DIE_WITH_PARENT, *command], stdout=log, stderr=log
            )
        wait_until(self._serves, "the schema registry serves", seconds=120)

    @property
    def url(self) -> str:
        """The address of its interface."""
        return f"http://{LOOPBACK}:{self._port.port}{PATH}"

    def _serves(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP until the end of the block: it takes connections, and replies to none."""
        pause(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._port.release()


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One registry for all tests of this process; each has subjects of its own."""
    server = RegistryServer(tmp_path_factory.mktemp("registry"))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def schema_registry(registry_server: RegistryServer) -> Iterator[SchemaRegistry]:
    """A client that remembers nothing of other tests."""
    with SchemaRegistry(registry_server.url, timeout=30) as registry:
        yield registry


@pytest.fixture
def schema_topic() -> str:
    """The name of a topic, and so of subjects, that no other test has."""
    return f"orders-{uuid4().hex[:12]}"
