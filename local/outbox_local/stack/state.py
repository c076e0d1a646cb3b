"""The state file: what the stack consists of, where its data lies and which processes it owns.

It holds the database's password and is readable by its owner only. It survives `outbox down`, so that the
next `outbox up` finds the same data, ports and password.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox_local.stack.choice import Kind
from outbox_local.stack.process import Identity
from outbox_relay.downloads.errors import StackError

VERSION = 1


@dataclass(slots=True)
class ServerState:
    """One server of the stack."""

    kind: Kind
    reason: str
    address: str = ""
    """A DSN or bootstrap servers; empty until the server has run once."""
    data: str = ""
    """The data directory of an embedded server."""
    program: str = ""
    """PostgreSQL's `bin` directory, or the `java` executable."""
    library: str = ""
    """The directory of Kafka's jars."""
    ports: list[int] = dataclasses.field(default_factory=list)
    """PostgreSQL's port; Kafka's ports for clients and for its controller."""
    password: str = ""
    process: Identity | None = None


@dataclass(slots=True)
class State:
    """The whole stack of one directory."""

    directory: Path
    postgres: ServerState
    kafka: ServerState
    scratch: str = ""
    """A directory of ours below the system's temporary one, for what PostgreSQL's user cannot reach here."""
    supervisor: Identity | None = None

    @classmethod
    def load(cls, directory: Path) -> State | None:
        """Read the state of a directory; None without one. Raises StackError when it cannot be understood."""
        path = state_path(directory)
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
            if raw.pop("version") != VERSION:
                raise StackError(
                    f"{path} was written by another version: run `outbox down --wipe` with that version"
                )
            return cls(
                directory=directory,
                postgres=_server(raw["postgres"]),
                kafka=_server(raw["kafka"]),
                scratch=raw["scratch"],
                supervisor=_identity(raw["supervisor"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(
                f"{path} is damaged ({error!r}): move it away and run `outbox up` again"
            ) from error

    def save(self) -> None:
        """Write the state in one rename: a reader sees the old or the new one, never a part."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = state_path(self.directory)
        content = {"version": VERSION, **dataclasses.asdict(self)}
        del content["directory"]
        handle, part = tempfile.mkstemp(prefix=".state-", dir=self.directory)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            Path(part).rename(path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    @property
    def servers(self) -> dict[str, ServerState]:
        """The servers by name, in the order people name them."""
        return {"postgres": self.postgres, "kafka": self.kafka}

    @property
    def embedded(self) -> dict[str, ServerState]:
        """The servers that are processes of ours."""
        return {name: server for name, server in self.servers.items() if server.kind.embedded}

    @property
    def log_directory(self) -> Path:
        """Where the servers and their supervisor write their logs."""
        return self.directory / "logs"

    @property
    def compose_project(self) -> str:
        """The name of this directory's Docker compose project."""
        return "outbox-" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:10]

    def running(self) -> bool:
        """Return whether everything that we started still runs: the very processes, not merely their pids."""
        if not self.embedded:
            return self.supervisor is None
        owned = [self.supervisor, *(server.process for server in self.embedded.values())]
        return all(identity is not None and identity.alive() for identity in owned)


def state_directory(given: str | Path | None = None) -> Path:
    """Return where the stack of this place lives: as given, else $OUTBOX_STATE, else ./.outbox."""
    return Path(given or os.environ.get("OUTBOX_STATE") or ".outbox").expanduser().absolute()


DEV_FILE = "dev.json"
"""The file that an `outbox dev` of the directory holds a lock on."""


def state_path(directory: Path) -> Path:
    """The state file of a directory."""
    return directory / "state.json"


def _server(raw: dict[str, Any]) -> ServerState:
    return ServerState(**{**raw, "kind": Kind(raw["kind"]), "process": _identity(raw["process"])})


def _identity(raw: dict[str, Any] | None) -> Identity | None:
    return Identity(**raw) if raw else None
