"""The embedded Kafka broker: one KRaft node, broker and controller in one process, loopback only."""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from outbox_relay.stack.ports import LOOPBACK, Reservation, listens
from outbox_relay.stack.process import spawn
from outbox_relay.stack.server import EmbeddedServer, fresh
from outbox_relay.stack.state import ServerState

HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")
_STARTED = "Kafka Server started"


class Kafka(EmbeddedServer):
    """One broker and its data."""

    title = "Kafka"
    stop_signal = signal.SIGTERM
    # Its orderly shutdown can hang on clients; a broker without an owner shall not.
    death_signal = signal.SIGKILL

    def __init__(self, state: ServerState, log: Path) -> None:
        """Reserve the ports of the state, or any when they are taken."""
        super().__init__(state, log)
        self.data = Path(state.data)
        wanted = state.ports or [0, 0]
        self.port, self.controller_port = (Reservation(port) for port in wanted)
        state.ports = [self.port.port, self.controller_port.port]
        state.address = f"{LOOPBACK}:{self.port.port}"

    def initialise(self) -> Iterator[None]:
        """Format the storage beside its place and rename it there: an interrupted run leaves no half storage."""
        if self.data.exists():
            return
        part = fresh(self.data.with_name(self.data.name + ".new"))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._write_settings(part)
        )
        yield from self.run(command)
        part.rename(self.data)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the broker with today's settings."""
        return spawn(
            self._java("kafka.Kafka", self._write_settings(self.data)),
            log=self.log,
            death_signal=self.death_signal,
        )

    def ready(self) -> bool:
        """Tell whether the broker serves: its port opens a moment before that, so its log is asked too."""
        return _STARTED in self.output() and listens(self.port.port)

    def _java(self, main: str, *arguments: str | Path) -> list[str | Path]:
        logging = files("outbox_relay.stack") / "log4j2.properties"
        return [
            self.state.program,
            *HEAP,
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            f"{self.state.library}/*",
            main,
            *arguments,
        ]

    def _write_settings(self, data: Path) -> Path:
        """Write the broker's settings beside its data; ports and paths are today's."""
        listeners = (
            f"PLAINTEXT://{LOOPBACK}:{self.port.port},CONTROLLER://{LOOPBACK}:{self.controller_port.port}"
        )
        path = self.data.with_name("kafka.properties")
        path.write_text(
            (files("outbox_relay.stack") / "kafka.properties").read_text()
            + f"listeners={listeners}\n"
            # Voters by setting, not in the metadata: a controller whose port was taken may move to another.
            + f"controller.quorum.voters=1@{LOOPBACK}:{self.controller_port.port}\n"
            + f"log.dirs={data}\n"
        )
        return path
