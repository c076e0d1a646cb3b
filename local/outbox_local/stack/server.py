"""What the two embedded servers have in common: a process with a log, started and ended in our hands."""

from __future__ import annotations

import abc
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from outbox_local.stack.process import Identity, family, spawn
from outbox_local.stack.state import ServerState
from outbox_local.stack.users import ServiceUser
from outbox_relay.downloads.errors import StackError

START_LIMIT = 90.0
"""Seconds until a server that is not ready counts as failed; a crash recovery may take some."""
STOP_LIMIT = 15.0
"""Seconds that a server has to shut down before it is killed."""
_LOG_TAIL = 2_000


class EmbeddedServer(abc.ABC):
    """A server process of the calling process.

    `start` and `stop` are generators that yield while they wait, so that one thread starts two servers at
    once and still hears that it shall give up.
    """

    title: str
    stop_signal: signal.Signals
    death_signal: signal.Signals

    def __init__(self, state: ServerState, log: Path, changed: Callable[[], None]) -> None:
        """Take the server's state, which is kept up to date, its log file, and what to call with a new process."""
        self.state = state
        self.log = log
        self.changed = changed
        self.child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @abc.abstractmethod
    def initialise(self) -> Iterator[None]:
        """Make the data directory unless it exists."""

    @abc.abstractmethod
    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Return whether clients are served."""

    def start(self) -> Iterator[None]:
        """Bring the server up on its data and its port; nothing happens when it runs.

        Raises StackError, with the end of its log, when it ends instead or is not ready in time.
        """
        if self.alive():
            return
        deadline = time.monotonic() + START_LIMIT
        yield from self.initialise()
        self._mark_log()
        self.child = self.launch()
        self.state.process = Identity.of(self.child.pid)
        self.changed()
        while not self.ready():
            if not self.alive():
                raise StackError(f"{self.title} ended while starting (log: {self.log}):\n{self.output()}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.title} was not ready within {START_LIMIT:.0f} s (log: {self.log}):\n{self.output()}"
                )
            yield

    def stop(self) -> Iterator[None]:
        """Shut the server down as an operator would; kill it when that takes too long."""
        if self.child is not None and self.alive():
            self.resume()  # a paused process hears nothing
            self.child.send_signal(self.stop_signal)
            deadline = time.monotonic() + STOP_LIMIT
            while self.alive() and time.monotonic() < deadline:
                yield
        self.kill()

    def kill(self) -> None:
        """End the server and its children with SIGKILL, as a power failure would; returns when they are gone."""
        if self.child is None:
            return
        # Stopped first, so that it starts no further child while the children are looked up.
        self.child.send_signal(signal.SIGSTOP)
        victims = family(self.child.pid)
        for victim in victims:
            victim.send(signal.SIGKILL)
        self.child.wait()
        while any(victim.alive() for victim in victims):
            time.sleep(0.002)
        self.child = None
        self.state.process = None

    def pause(self) -> None:
        """Freeze the server and its children, as a stalled machine would."""
        self._signal_family(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal_family(signal.SIGCONT)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.child is not None and self.child.poll() is None

    def output(self) -> str:
        """What the server wrote since its last start, at most the last 2,000 characters."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")[-_LOG_TAIL:].strip()

    def run(self, command: list[str | Path], user: ServiceUser | None = None) -> Iterator[None]:
        """Run a preparing program to its end; raises StackError, with its output, when it fails."""
        self._mark_log()
        child = spawn(command, log=self.log, death_signal=signal.SIGKILL, user=user)
        while child.poll() is None:
            yield
        if child.returncode != 0:
            raise StackError(
                f"{Path(command[0]).name} failed with code {child.returncode} (log: {self.log}):\n{self.output()}"
            )

    def _mark_log(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0

    def _signal_family(self, number: signal.Signals) -> None:
        if self.child is not None and self.alive():
            for identity in family(self.child.pid):
                identity.send(number)


def fresh(directory: Path) -> Path:
    """Make an empty directory to build a data directory in; what an interrupted run left there goes."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
