"""A second broker of a private stack's cluster, for topics whose only replica can be taken away."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outbox_local.stack.api import Stack
from outbox_local.stack.jvm import ClassArchive, java_command
from outbox_local.stack.ports import Reservation
from outbox_local.stack.state import ServerState, State
from outbox_local.stack.storage import storage_template
from tests.support.kafka_records import read_topic
from tests.support.pausing import pause
from tests.support.waiting import wait_until

NODE = 2
# The kernel kills the broker when the test's process ends, however that ends.
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)


def launched(kafka: ServerState, place: Path) -> subprocess.Popen[bytes]:
    """Start a broker with the programs of a stack, by `kafka.properties` of a directory; it writes to `log` there."""
    command = java_command(kafka.program, kafka.library, "kafka.Kafka", place / "kafka.properties")
    archive = ClassArchive(kafka.program)
    if archive.path.exists():
        command[1:1] = [f"-XX:SharedArchiveFile={archive.path}"]
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", DIE_WITH_PARENT, *map(str, command)], stdout=log, stderr=log
        )


class SecondBroker:
    """Node 2 of the cluster: a broker without a controller. It keeps its port and its data when it is killed."""

    def __init__(self, stack: Stack) -> None:
        first = State.load(stack._state.directory)
        assert first is not None
        self._kafka = first.kafka
        self.bootstrap_servers = stack.bootstrap_servers
        self._directory = tempfile.TemporaryDirectory(prefix="outbox-broker-")
        self._place = Path(self._directory.name)
        self._port = Reservation()
        self._process: subprocess.Popen[bytes] | None = None
        self._format()
        self._keep_internal_topics_on_the_first()

    def _format(self) -> None:
        data = self._place / "data"
        template = storage_template(self._kafka.program, self._kafka.library)
        first = (Path(self._kafka.data) / "meta.properties").read_text()
        cluster = re.search(r"(?m)^cluster\.id=(.*)$", first)
        assert cluster is not None
        data.mkdir()
        identity = uuid.uuid4().hex[:22]
        text = (template / "meta.properties").read_text()
        for name, value in (("cluster.id", cluster[1]), ("node.id", NODE), ("directory.id", identity)):
            text = re.sub(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
        (data / "meta.properties").write_text(text)
        settings = (files("outbox_local.stack") / "kafka.properties").read_text()
        settings = settings.replace("process.roles=broker,controller", "process.roles=broker")
        (self._place / "kafka.properties").write_text(
            settings.replace("node.id=1", f"node.id={NODE}")
            + f"listeners=PLAINTEXT://127.0.0.1:{self._port.port}\n"
            + f"controller.quorum.voters=1@127.0.0.1:{self._kafka.ports[1]}\n"
            + f"log.dirs={data}\n"
        )

    def _keep_internal_topics_on_the_first(self) -> None:
        """Let __consumer_offsets be made now, so that no part of it lies on a broker that dies."""
        read_topic(self.bootstrap_servers, self.make_topic(on=1))

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def make_topic(
        self, *, on: int, partitions: int = 1, also_on: Sequence[int] = (), **settings: str
    ) -> str:
        """Make a topic with replicas on these nodes only, led by the first; it returns when it can be written to."""
        name = f"on{on}-{uuid.uuid4().hex[:12]}"
        admin = self._admin()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        replicas = [[on, *also_on]] * partitions
        new = NewTopic(name, num_partitions=partitions, replica_assignment=replicas, config=config)
        admin.create_topics([new])[name].result(15)
        wait_until(lambda: self._leads(admin, name, on), f"broker {on} leads {name}")
        return name

    def make_spread_topic(self) -> str:
        """Make a topic with its first partition on the first broker, and its second one here."""
        name = f"spread-{uuid.uuid4().hex[:12]}"
        admin = self._admin()
        admin.create_topics([NewTopic(name, num_partitions=2, replica_assignment=[[1], [NODE]])])[
            name
        ].result(15)

        def has_leaders() -> bool:
            parts = admin.list_topics(name, timeout=15).topics[name].partitions
            return [part.leader for _, part in sorted(parts.items())] == [1, NODE]

        wait_until(has_leaders, f"both partitions of {name} have leaders")
        return name

    def _leads(self, admin: AdminClient, name: str, node: int) -> bool:
        known = admin.list_topics(name, timeout=15).topics[name]
        return known.error is None and all(part.leader == node for part in known.partitions.values())

    def start(self) -> None:
        """Start it and wait until the cluster knows it."""
        self._process = launched(self._kafka, self._place)
        admin = self._admin()
        wait_until(self._is_known(admin), "the cluster knows broker 2")

    def _is_known(self, admin: AdminClient) -> Callable[[], bool]:
        def known() -> bool:
            process = self._process
            assert process is not None
            assert process.poll() is None, (self._place / "log").read_text()[-3000:]
            return NODE in admin.list_topics(timeout=15).brokers

        return known

    def kill(self) -> None:
        """SIGKILL, as a power cut would; returns when the cluster has noticed."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        admin = self._admin()
        wait_until(lambda: NODE not in admin.list_topics(timeout=15).brokers, "broker 2 is gone")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP until the end of the block: its connections stay, and nothing is answered."""
        assert self._process is not None
        pause(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Noticed by the cluster, too: until then the next test's topics may be placed on it.
        self.kill()
        self._port.release()
        self._directory.cleanup()
