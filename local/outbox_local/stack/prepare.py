"""From options to a plan: choose each server, fetch what it needs, place its data. Nothing is started here."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outbox_local.stack import survey
from outbox_local.stack.choice import ORIGINS, AllowedOrigins, Choice, Kind, choose
from outbox_local.stack.given import check_kafka, check_postgres
from outbox_local.stack.state import ServerState, State
from outbox_local.stack.storage import storage_template
from outbox_local.stack.users import ServiceUser, postgres_user, reaches
from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.jars import KAFKA_VERSION, kafka_jars
from outbox_relay.downloads.java import Probe, find_java
from outbox_relay.downloads.wheels import JAVA_WHEEL, POSTGRES_WHEEL, java_from_wheel, postgres_from_wheel

Report = Callable[[str], None]
"""Gets one line of progress at a time."""
_TITLES = {"postgres": "PostgreSQL", "kafka": "Kafka"}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What the caller gave and allows."""

    dsn: str = ""
    bootstrap_servers: str = ""
    origins: AllowedOrigins = AllowedOrigins.AUTO
    postgres_port: int = 0
    """Where a PostgreSQL of ours serves; 0 where it served last, at first on any port."""
    kafka_port: int = 0
    """The same for Kafka."""
    fresh: bool = False
    """Begin without the data of the last run, on its ports and with its password."""


class Preparation:
    """Makes the state of a stack that is about to start."""

    def __init__(self, directory: Path, options: StackOptions, old: State | None, report: Report) -> None:
        """Take the directory of the stack, the caller's options and the state of the last run, if there was one."""
        self.directory, self.options, self.old, self.report = directory, options, old, report
        self.scratch = old.scratch if old and _ours(old.scratch) else ""
        # Asked at most once, and only when the answer matters.
        self._docker = functools.cache(survey.docker)

    def state(self) -> State:
        """Choose and fetch; raises StackError when something that is needed cannot be had."""
        before = self.scratch
        try:
            return self._state()
        except BaseException:
            if self.scratch != before:
                shutil.rmtree(self.scratch, ignore_errors=True)  # no state file will know of it
            raise

    def _state(self) -> State:
        # What is given comes first: it can be refused before anything is fetched.
        postgres = self._given("postgres", self.options.dsn, "a DSN", check_postgres)
        kafka = self._given(
            "kafka", self.options.bootstrap_servers, "a list of bootstrap servers", check_kafka
        )
        postgres = postgres or _at(self.options.postgres_port, self._kept("postgres") or self._postgres())
        kafka = kafka or _at(self.options.kafka_port, self._kept("kafka") or self._kafka())
        return State(self.directory, postgres, kafka, self.scratch)

    def _given(self, name: str, address: str, what: str, check: Callable[[str], None]) -> ServerState | None:
        """Use a given server that answers, unless the address is that of our own last run.

        `eval "$(outbox env)"` stays in a shell when its stack has gone down; the next `outbox up` there must
        not take its own dead server for somebody else's.
        """
        before = self.old.servers[name] if self.old else None
        if not address or (before and before.kind is not Kind.GIVEN and before.address == address):
            return None
        check(address)
        choice = choose(given=what, origins=self.options.origins, docker=Probe(), machine=Probe(), wheel="")
        return self._told(name, ServerState(choice.kind, choice.reason, address))

    def _kept(self, name: str) -> ServerState | None:
        """Keep the last run's origin while it has data there: another server would start with an empty one."""
        before = self.old.servers[name] if self.old else None
        if before is None or before.kind is Kind.GIVEN or before.kind not in ORIGINS[self.options.origins]:
            return None
        if before.kind.embedded and self.options.fresh and Path(before.data).exists():
            shutil.rmtree(before.data)
        needed = (before.program, before.library, "" if self.options.fresh else before.data)
        if before.kind.embedded and not all(Path(path).exists() for path in needed if path):
            return None
        before.process = None
        return self._told(name, before)

    def _postgres(self) -> ServerState:
        user = postgres_user()
        machine = survey.postgres(user)
        choice = self._choose("PostgreSQL", machine.probe, POSTGRES_WHEEL)
        server = ServerState(choice.kind, choice.reason, password=secrets.token_urlsafe(24))
        if choice.kind is Kind.WHEEL:
            server.program = str(self._within_reach(user, postgres_from_wheel()) / "bin")
        elif choice.kind is Kind.MACHINE:
            server.program = str(machine.path)
        if choice.kind.embedded:
            server.data = str(self._data_directory(user) / "postgres")
            refuse_other_version(Path(server.data), Path(server.program))
        return server

    def _kafka(self) -> ServerState:
        machine = find_java()
        choice = self._choose("Kafka", machine.probe, JAVA_WHEEL)
        server = ServerState(choice.kind, choice.reason)
        if choice.kind.embedded:
            server.reason += f"; Kafka {KAFKA_VERSION} from its pinned jars"
            server.program = str(java_from_wheel() if choice.kind is Kind.WHEEL else machine.path)
            server.library = str(
                kafka_jars(
                    lambda done, of: self.report(f"fetching Kafka {KAFKA_VERSION}: {done} of {of} jars")
                )
            )
            storage_template(server.program, server.library)
            server.data = str(self._own_data() / "kafka")
        return server

    def _choose(self, name: str, machine: Probe, wheel: str) -> Choice:
        needs_docker = self.options.origins in (AllowedOrigins.AUTO, AllowedOrigins.DOCKER)
        docker = self._docker() if needs_docker else Probe(missing="Docker is not allowed")
        choice = choose(given="", origins=self.options.origins, docker=docker, machine=machine, wheel=wheel)
        self.report(f"{name} from {choice.kind}: {choice.reason}")
        return choice

    def _told(self, name: str, server: ServerState) -> ServerState:
        self.report(f"{_TITLES[name]} from {server.kind}: {server.reason}")
        return server

    def _own_data(self) -> Path:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        return data

    def _data_directory(self, user: ServiceUser | None) -> Path:
        """Answer the directory for PostgreSQL's data: the stack's own, or one that the server's user can reach."""
        data = self._own_data()
        if reaches(user, data):
            return data
        self.report(
            f"user {user.name if user else '?'} cannot reach {data}: PostgreSQL's data lies below {self._scratch()}"
        )
        return self._scratch()

    def _within_reach(self, user: ServiceUser | None, installed: Path) -> Path:
        """Answer the programs of the wheel, copied to where the server's user can run them if need be."""
        if reaches(user, installed / "bin" / "postgres"):
            return installed
        target = self._scratch() / "wheel"
        if not target.exists():
            part = self._scratch() / "wheel.part"
            shutil.rmtree(part, ignore_errors=True)
            for source in (installed, installed.parent.with_name(installed.parent.name + ".libs")):
                # The programs find their libraries by the way from one directory to the other.
                shutil.copytree(source, part / source.relative_to(installed.parents[1]), symlinks=True)
            part.rename(target)
        return target / installed.relative_to(installed.parents[1])

    def _scratch(self) -> Path:
        if not self.scratch:
            made = Path(tempfile.mkdtemp(prefix="outbox-"))
            made.chmod(0o711)  # others may pass through to what is theirs, and list nothing
            self.scratch = str(made)
        return Path(self.scratch)


def refuse_other_version(data: Path, program: Path) -> None:
    """Refuse programs of another major version than the one that made the data: they could not read it."""
    made_by = data / "PG_VERSION"
    if not made_by.exists():
        return
    found, version = made_by.read_text().strip(), survey.postgres_version(program) or "?"
    if found != version.split(".")[0]:
        raise StackError(
            f"the data in {data} was made by PostgreSQL {found}, and {program} is PostgreSQL {version}: "
            "allow what made it (--from auto), or remove the data (outbox down --wipe)"
        )


def _at(port: int, server: ServerState) -> ServerState:
    """Give a server this port for its clients, unless it is 0; Kafka's controller keeps its own."""
    if port:
        server.ports = [port, *server.ports[1:]]
    return server


def _ours(scratch: str) -> bool:
    """Return whether the directory of the last run is still there and still ours: it lies where anybody may write."""
    path = Path(scratch)
    return bool(scratch) and path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid()
