"""The servers of a session: given ones, those of a stack that runs, or a stack that ends with the session."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from outbox_local.stack.api import STOPPING
from outbox_local.stack.choice import Kind
from outbox_local.stack.given import check_kafka, check_postgres
from outbox_local.stack.lifecycle import bring_down, bring_up, running_stack, settled_stack
from outbox_local.stack.ports import taken
from outbox_local.stack.prepare import Report, StackOptions
from outbox_local.stack.process import Identity
from outbox_local.stack.state import State
from outbox_relay.downloads.errors import StackError

_TITLES = {"postgres": "PostgreSQL", "kafka": "Kafka"}


@dataclass(frozen=True, slots=True)
class Servers:
    """Two servers that serve."""

    dsn: str
    bootstrap_servers: str
    directory: Path | None
    """Of the stack; None when both are given."""

    def require(self) -> None:
        """Check that the stack still runs; raises StackError, with what is down, when it does not."""
        if self.directory is not None:
            running_stack(self.directory)

    def require_settled(self) -> None:
        """Check the same, after an `outbox down` that is under way: what it ends first is not what is down."""
        if self.directory is not None:
            settled_stack(self.directory)


@contextlib.contextmanager
def serving(directory: Path, options: StackOptions, *, report: Report) -> Iterator[Servers]:
    """Have servers for the block; those that were started for it are stopped at its end, and keep their data.

    A stack that `outbox up` started is used and left alone.

    Args:
        directory: of the stack.
        options: which servers are given, where others may come from, their ports, and whether they begin empty.
        report: gets the progress, a line at a time.

    Raises:
        StackError: servers could not be had, a port is taken, or data of a running stack was to be removed.
    """
    options = _without_own(State.load(directory), options)
    if options.fresh and (options.dsn or options.bootstrap_servers):
        raise StackError(
            "--fresh removes the data of local servers, and one is given: leave out --fresh, or --dsn and "
            "--bootstrap-servers (OUTBOX_DSN, OUTBOX_BOOTSTRAP_SERVERS)"
        )
    if options.dsn and options.bootstrap_servers:
        check_postgres(options.dsn)
        check_kafka(options.bootstrap_servers)
        report("PostgreSQL and Kafka are given")
        yield Servers(options.dsn, options.bootstrap_servers, None)
        return
    before = _stopped(directory)
    if before is None and options.fresh:
        raise StackError(
            f"the stack in {directory} runs, and --fresh would remove its data under its users: "
            "end it first, with its data: outbox down --wipe"
        )
    wanted = _ports(before or {}, options)
    if before is not None:
        for server, port in wanted.items():
            if taken(port):
                raise _taken(server, port)
    state, started = None, False
    try:
        state, started = bring_up(directory, options, report=report, owner=Identity.of(os.getpid()))
        for server, port in wanted.items():
            serves_on = state.servers[server].ports[0]
            if serves_on == port:
                continue
            if started:  # it was taken since we looked
                raise _taken(server, port)
            raise StackError(
                f"{_TITLES[server]} of the stack that runs in {directory} serves on port {serves_on}: leave out "
                f"--{server}-port, or end that stack first: outbox down"
            )
        yield Servers(state.postgres.address, state.kafka.address, directory)
    except KeyboardInterrupt:
        if state is not None:  # else bring_up has reported it
            report(STOPPING)
        raise
    finally:
        if started:
            bring_down(directory)


def _stopped(directory: Path) -> dict[str, int] | None:
    """Return the ports on which the stopped servers of a directory served; None when they run."""
    state = State.load(directory)
    if state is None:
        return {}
    with contextlib.suppress(StackError):
        running_stack(directory)
        return None
    return {name: server.ports[0] for name, server in state.servers.items() if server.ports}


def _ports(before: dict[str, int], options: StackOptions) -> dict[str, int]:
    """Return on which port each server has to serve: as asked for, else as the last time."""
    asked = {"postgres": options.postgres_port, "kafka": options.kafka_port}
    given = {"postgres": options.dsn, "kafka": options.bootstrap_servers}
    found = {name: asked[name] or before.get(name, 0) for name in asked if not given[name]}
    return {name: port for name, port in found.items() if port}


def _taken(server: str, port: int) -> StackError:
    return StackError(
        f"port {port}, on which {_TITLES[server]} is to serve, is taken by another process\n"
        f"end that process (ss -ltnp 'sport = :{port}' names it), or choose another port: "
        f"outbox dev --{server}-port PORT"
    )


def _without_own(state: State | None, options: StackOptions) -> StackOptions:
    """Leave out addresses of our own last run: `eval "$(outbox env)"` stays in a shell."""
    if state is not None and state.postgres.kind is not Kind.GIVEN and options.dsn == state.postgres.address:
        options = replace(options, dsn="")
    if (
        state is not None
        and state.kafka.kind is not Kind.GIVEN
        and options.bootstrap_servers == state.kafka.address
    ):
        options = replace(options, bootstrap_servers="")
    return options
