"""The line between a client and the supervisor it started: one command at a time, JSON objects, one per line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outbox_relay.downloads.errors import StackError

Event = dict[str, Any]


class Control:
    """The client's end. When the client dies, this end closes, and the supervisor ends its servers."""

    def __init__(self, directory: Path) -> None:
        """Start the supervisor of a stack directory whose state is prepared."""
        self._lock = threading.Lock()
        self._log = directory / "logs" / "supervisor.log"
        self._socket, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as log:
            # -P: a `json.py` in the caller's working directory is not what we mean.
            subprocess.run(
                [
                    *(sys.executable, "-P", "-m", "outbox_local.stack.supervisor"),
                    *(str(directory), str(theirs.fileno()), str(os.getpid())),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
        self._stream = self._socket.makefile("rb")

    def ask(self, do: str, tell: Callable[[Event], None] | None = None, **details: object) -> None:
        """Send a command and wait until it is done; `tell` hears what happens on the way.

        Raises StackError with the supervisor's reason when the command failed, and when the supervisor is
        gone.
        """
        with self._lock:
            try:
                self._socket.sendall(json.dumps({"do": do, **details}).encode() + b"\n")
                for line in self._stream:
                    event: Event = json.loads(line)
                    if "error" in event:
                        raise StackError(event["error"])
                    if "done" in event:
                        return
                    if tell is not None:
                        tell(event)
            except (OSError, ValueError) as error:
                raise StackError(
                    f"the stack's supervisor cannot be reached: {error} (log: {self._log})"
                ) from error
            raise StackError(
                f"the stack's supervisor has ended (log: {self._log}):\n{self._log.read_text()[-1000:]}"
            )

    def end(self, *, at_once: bool) -> None:
        """Have the servers ended, with SIGKILL if `at_once`, and wait until they and the supervisor are gone."""
        with self._lock:
            try:
                self._socket.sendall(json.dumps({"do": "end", "at_once": at_once}).encode() + b"\n")
                while self._stream.readline():
                    pass
            except (OSError, ValueError):
                pass  # it is gone already, and its servers with it
        self.close()

    def close(self) -> None:
        """Let go of the supervisor; it ends unless it was detached."""
        self._stream.close()
        self._socket.close()
