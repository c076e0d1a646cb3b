"""The embedded Kafka broker: one KRaft node, broker and controller in one process, loopback only."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from outbox_local.stack.jvm import ClassArchive, java_command
from outbox_local.stack.ports import LOOPBACK, Reservation, listens
from outbox_local.stack.process import spawn
from outbox_local.stack.server import EmbeddedServer, fresh
from outbox_local.stack.state import ServerState
from outbox_local.stack.storage import new_storage, settings, storage_template

_STARTED = "Kafka Server started"
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM
"""The exit code of a Java that shut down in order when it was asked to."""


class Kafka(EmbeddedServer):
    """One broker and its data."""

    title = "Kafka"
    stop_signal = signal.SIGTERM
    # Its orderly shutdown can hang on clients; a broker without an owner shall not.
    death_signal = signal.SIGKILL

    def __init__(self, state: ServerState, log: Path, changed: Callable[[], None]) -> None:
        """Reserve the ports of the state, or any when they are taken."""
        super().__init__(state, log, changed)
        self.data = Path(state.data)
        self.port, self.controller_port = (Reservation(port) for port in (*state.ports, 0, 0)[:2])
        state.ports = [self.port.port, self.controller_port.port]
        state.address = f"{LOOPBACK}:{self.port.port}"
        self._archive = ClassArchive(state.program)
        self._archive_part = self.data.with_name("kafka.jsa")

    def initialise(self) -> Iterator[None]:
        """Make the storage next to its place and rename it there: an interrupted run leaves no half storage."""
        if not self.data.exists():
            part = fresh(self.data.with_name(self.data.name + ".new"))
            new_storage(storage_template(self.state.program, self.state.library), part)
            part.rename(self.data)
        yield

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the broker with today's settings."""
        path = self.data.with_name("kafka.properties")
        path.write_text(settings(self.port.port, self.controller_port.port, self.data))
        self._archive_part.unlink(missing_ok=True)
        java, *rest = java_command(self.state.program, self.state.library, "kafka.Kafka", path)
        command = [java, *self._archive.flags(self._archive_part), *rest]
        return spawn(command, log=self.log, death_signal=self.death_signal)

    def ready(self) -> bool:
        """Return whether the broker serves: its port opens a moment before that, so its log is asked too."""
        return _STARTED in self.output() and listens(self.port.port)

    def stop(self) -> Iterator[None]:
        """Shut the broker down; keep the archive of its classes if this run has written one."""
        child = self.child
        yield from super().stop()
        if child is not None and child.returncode == _ENDED_BY_SIGTERM:
            self._archive.take(self._archive_part)
