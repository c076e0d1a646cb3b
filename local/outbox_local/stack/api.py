"""A local stack in the caller's hands: start it, use its two addresses, kill and revive its servers, stop it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from outbox_local.stack import compose
from outbox_local.stack.cleanup import end_processes, wipe
from outbox_local.stack.control import Control, Event
from outbox_local.stack.prepare import Preparation, Report, StackOptions
from outbox_local.stack.process import Identity
from outbox_local.stack.state import State
from outbox_relay.downloads.cache import locked
from outbox_relay.downloads.errors import StackError

STOPPING = "stopping"
"""What is reported when servers are stopped because somebody interrupts."""


def silent(line: str) -> None:
    """Report no progress."""


class Stack:
    """A running stack that ends with the process that started it, unless it is detached.

        # Without a directory the stack has one of its own, which is removed at the end.
        with Stack.start(options=StackOptions(origins=AllowedOrigins.EMBEDDED)) as stack:
            psycopg.connect(stack.dsn)
            stack.kill_kafka()                                          # SIGKILL, as a power failure would
            stack.start_kafka()                                         # same port, same data

    Safe to call from several threads. However the calling process dies, the servers die with it.
    """

    def __init__(self, state: State, *, ephemeral: bool = False) -> None:
        """Take a prepared state; use `Stack.start` instead."""
        self._state, self._ephemeral = state, ephemeral
        self._control = Control(state.directory) if state.embedded else None

    @classmethod
    def start(
        cls, directory: Path | None = None, *, options: StackOptions | None = None, report: Report = silent
    ) -> Self:
        """Start a stack, on the data of its directory if there is some; it serves when this returns.

        A stack that already runs in that directory is restarted. Without a directory it gets a temporary one,
        which `stop` removes. `options` states what is given and allowed, `report` gets the progress, a line at a
        time.

        Raises StackError when a server could not be had or did not start; nothing of ours runs then.
        """
        if directory is not None:
            with locked(directory / "lock"):
                return cls.start_locked(directory, options=options, report=report)
        place = Path(tempfile.mkdtemp(prefix="outbox-stack-"))
        place.chmod(0o711)  # PostgreSQL's user passes through to its data
        try:
            return cls.start_locked(place, options=options, report=report, ephemeral=True)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    @classmethod
    def start_locked(
        cls,
        directory: Path,
        *,
        options: StackOptions | None = None,
        report: Report = silent,
        ephemeral: bool = False,
    ) -> Self:
        """Do the work of `start` for a caller who holds the directory's lock."""
        old = State.load(directory)
        if old is not None:
            end_processes(old)
            if options is not None and options.fresh:
                compose.down(old, with_data=True)
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        state = Preparation(directory, options or StackOptions(), old, report).state()
        state.save()
        compose.up(state, report)
        state.save()
        stack = cls(state, ephemeral=ephemeral)
        try:
            stack._start_servers(report)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                report(STOPPING)  # a broker that starts takes up to 15 s to end
            stack.stop()
            raise
        return stack

    @property
    def dsn(self) -> str:
        """The database `outbox`, or the one that was given."""
        return self._state.postgres.address

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address, for Kafka clients."""
        return self._state.kafka.address

    def process(self, server: str) -> Identity | None:
        """The process of "postgres" (its postmaster) or "kafka"; None while it is down or not ours."""
        now = State.load(self._state.directory)
        return now.servers[server].process if now else None

    def stop(self) -> None:
        """Stop what this started; a temporary directory goes with it. Idempotent."""
        if self._control is not None:
            self._control.end(at_once=self._ephemeral)
            self._control = None
        if self._ephemeral:
            compose.down(self._state, with_data=True)
            wipe(self._state)

    def detach(self, owner: Identity | None = None) -> None:
        """Let the stack live on after this process: until it is brought down, or until the owner process is gone."""
        if self._control is not None:
            self._control.ask("detach", owner=asdict(owner) if owner else None)
            self._control.close()
            self._control = None

    def kill_postgres(self) -> None:
        """End PostgreSQL, the postmaster and every backend, with SIGKILL."""
        self._command("kill", "postgres")

    def stop_postgres(self) -> None:
        """Shut PostgreSQL down as an operator would (fast: sessions are ended)."""
        self._command("stop", "postgres")

    def start_postgres(self) -> None:
        """Start PostgreSQL on its port and data; returns when it serves."""
        self._command("start", "postgres")

    def pause_postgres(self) -> None:
        """Freeze PostgreSQL: connections stay open and nothing is answered."""
        self._command("pause", "postgres")

    def resume_postgres(self) -> None:
        """Let a paused PostgreSQL go on."""
        self._command("resume", "postgres")

    def kill_kafka(self) -> None:
        """End the broker with SIGKILL."""
        self._command("kill", "kafka")

    def stop_kafka(self) -> None:
        """Shut the broker down as an operator would."""
        self._command("stop", "kafka")

    def start_kafka(self) -> None:
        """Start the broker on its port and data; returns when it serves."""
        self._command("start", "kafka")

    def pause_kafka(self) -> None:
        """Freeze the broker: connections stay open and nothing is answered."""
        self._command("pause", "kafka")

    def resume_kafka(self) -> None:
        """Let a paused broker go on."""
        self._command("resume", "kafka")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_servers(self, report: Report) -> None:
        def tell(event: Event) -> None:
            report(f"{event['ready']} serves on {event['place']} after {event['seconds']} s")

        if self._control is not None:
            self._control.ask("start", tell, servers=list(self._state.embedded))
        started = State.load(self._state.directory)
        if started is not None:
            self._state = started

    def _command(self, do: str, server: str) -> None:
        kind = self._state.servers[server].kind
        if not kind.embedded:
            raise StackError(
                f"cannot {do} {server}: it is {kind}, and only embedded servers are in our hands"
            )
        if self._control is None:
            raise StackError(f"cannot {do} {server}: this stack was stopped or detached")
        self._control.ask(do, servers=[server])
