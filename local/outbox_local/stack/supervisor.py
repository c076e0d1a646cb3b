"""The process that owns the embedded servers: while it lives they may live, and when it dies they die.

It is started for one stack directory and obeys one client over a socket, a JSON object per line each way. It
ends, and ends its servers, when its client asks for it, on SIGTERM, when its client is gone before `detach`, when its
owner process is gone, or when its directory is. Killed with SIGKILL, it takes its servers along, because the
kernel signals them (PR_SET_PDEATHSIG). It has one thread: the kernel watches the thread that started a
server.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from outbox_local.stack.kafka import Kafka
from outbox_local.stack.ports import LOOPBACK
from outbox_local.stack.postgres import Postgres
from outbox_local.stack.process import Identity
from outbox_local.stack.server import EmbeddedServer
from outbox_local.stack.state import State, state_path
from outbox_local.stack.users import postgres_user
from outbox_relay.downloads.cache import locked
from outbox_relay.downloads.errors import StackError

OWNER_CHECK = 0.5
"""Seconds between two checks whether the owner still lives."""
_STEP = 0.01


class Ended(Exception):
    """It is time to end: asked to, signalled, or left alone."""


class Supervisor:
    """Starts, stops and kills the servers of one stack as its client requests."""

    def __init__(self, state: State, control: socket.socket, owner: Identity | None) -> None:
        """Take the prepared state; `owner` is the process without which the stack shall not be."""
        self.state, self.control, self.owner = state, control, owner
        self.detached = False
        self.inbox = b""
        log = state.log_directory
        self.servers: dict[str, EmbeddedServer] = {}
        if state.postgres.kind.embedded:
            self.servers["postgres"] = Postgres(
                state.postgres, log / "postgres.log", state.save, postgres_user()
            )
        if state.kafka.kind.embedded:
            self.servers["kafka"] = Kafka(state.kafka, log / "kafka.log", state.save)
        state.supervisor = Identity.of(os.getpid())
        state.save()

    def serve(self) -> None:
        """Obey commands until it is time to end; then end the servers, whatever happened."""
        try:
            while True:
                command = self._next_command()
                try:
                    self._obey(command)
                    self._answer(done=True)
                except StackError as error:
                    self._answer(error=str(error))
        except Ended:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._together((server.stop() for server in self.servers.values()), time.sleep)
            self.state.supervisor = None
            if state_path(self.state.directory).exists():
                self.state.save()

    def _obey(self, command: dict[str, Any]) -> None:
        chosen = [self.servers[name] for name in command.get("servers", [])]
        match command["do"]:
            case "start":
                began = time.monotonic()
                self._together((self._start(server, began) for server in chosen), self._watch)
            case "stop":
                self._together((server.stop() for server in chosen), self._watch)
            case "kill":
                for server in chosen:
                    server.kill()
            case "pause":
                for server in chosen:
                    server.pause()
            case "resume":
                for server in chosen:
                    server.resume()
            case "detach":
                self.owner = Identity(**command["owner"]) if command["owner"] else None
                self.detached = True
            case "end":
                for server in self.servers.values() if command["at_once"] else ():
                    server.kill()
                raise Ended
        self.state.save()

    def _start(self, server: EmbeddedServer, began: float) -> Iterator[None]:
        yield from server.start()
        seconds = round(time.monotonic() - began, 1)
        self._answer(ready=server.title, place=f"{LOOPBACK}:{server.state.ports[0]}", seconds=seconds)

    def _together(self, steps: Iterable[Iterator[None]], pause: Callable[[float], object]) -> None:
        """Run several waits side by side in this one thread; `pause` is what is done in between."""
        running = list(steps)
        while running:
            running = [step for step in running if next(step, self) is not self]
            if running:
                pause(_STEP)

    def _next_command(self) -> dict[str, Any]:
        while b"\n" not in self.inbox:
            if self._watch(OWNER_CHECK):
                self.inbox += self.control.recv(65_536)
        line, _, self.inbox = self.inbox.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def _watch(self, seconds: float) -> bool:
        """Wait; answer whether the client has said something. Raises Ended when nobody wants us any more."""
        if self.owner is not None and not self.owner.alive():
            raise Ended
        if not state_path(self.state.directory).exists():
            raise Ended  # somebody removed the directory: nobody could find these servers any more
        if self.control.fileno() < 0:
            time.sleep(seconds)
            return False
        readable, _, _ = select.select([self.control], [], [], seconds)
        if not readable:
            return False
        try:
            gone = self.control.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            gone = True
        if gone and not self.detached:
            raise Ended
        if gone:
            self.control.close()
            return False
        return True

    def _answer(self, **event: object) -> None:
        try:
            self.control.sendall(json.dumps(event).encode() + b"\n")
        except OSError:
            return  # the client is gone; the next look at the socket says what follows from that


def main(arguments: list[str]) -> None:
    """Run as `supervisor DIRECTORY CONTROL_FD OWNER_PID`, in the background and in a session of its own."""
    directory, control, owner = Path(arguments[0]), socket.socket(fileno=int(arguments[1])), int(arguments[2])
    identity = Identity.of(owner)
    if identity is None or os.fork():
        os._exit(0)  # the client waits for this one; the child belongs to nobody but its socket and its owner
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Held for life: a supervisor that is still ending its servers must not meet its successor.
    with locked(directory / "supervisor.lock"):
        state = State.load(directory)
        if state is not None:
            Supervisor(state, control, identity).serve()


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended


if __name__ == "__main__":
    main(sys.argv[1:])
