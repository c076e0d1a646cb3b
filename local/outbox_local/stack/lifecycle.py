"""Stacks that outlive the process that started them: bring one up, find it, bring it down."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

from outbox_local.stack import compose
from outbox_local.stack.api import STOPPING, Stack, silent
from outbox_local.stack.choice import ORIGINS, Kind
from outbox_local.stack.cleanup import end_processes, wipe
from outbox_local.stack.prepare import Report, StackOptions
from outbox_local.stack.process import Identity
from outbox_local.stack.state import State
from outbox_relay.downloads.cache import locked
from outbox_relay.downloads.errors import StackError


def bring_up(
    directory: Path, options: StackOptions, *, report: Report = silent, owner: Identity | None = None
) -> tuple[State, bool]:
    """Have a stack running in the directory, and answer it and whether it was started now.

    One that runs and fits the options is left alone. One that was interrupted (a crash, a reboot, a killed server)
    is started again on its data, and on its ports if they are free. Until this returns, the death of the
    calling process ends the servers; afterwards only `bring_down`, or the death of the `owner`, does.

    Raises StackError when a server could not be had or did not start.
    """
    with locked(directory / "lock"):
        there = State.load(directory)
        if there is not None and there.running() and compose.healthy(there) and _fits(there, options):
            return there, False
        stack = None
        try:
            stack = Stack.start_locked(directory, options=options, report=report)
            stack.detach(owner)
            return running_stack(directory), True
        except KeyboardInterrupt:
            there = State.load(directory)
            if (
                stack is not None and there is not None
            ):  # else nothing has started, or it has been stopped again
                report(STOPPING)
                end_processes(there)
            raise


def running_stack(directory: Path) -> State:
    """Find the stack that runs in the directory; raises StackError, naming `outbox up`, when none does."""
    state = State.load(directory)
    if state is None or not any(server.address for server in state.servers.values()):
        raise StackError(
            f"no stack was started in {directory}: run `outbox up` or `outbox dev`, or change to the directory "
            "in which you did"
        )
    if not state.running():
        dead = [
            name
            for name, server in state.embedded.items()
            if server.process is None or not server.process.alive()
        ]
        what = " and ".join(dead) + (" does" if len(dead) == 1 else " do") if dead else "its supervisor does"
        raise StackError(
            f"the stack in {directory} is down ({what} not run): `outbox up` starts it again with its data"
        )
    return state


def settled_stack(directory: Path) -> State:
    """Find the stack as `running_stack` does, once an `outbox down` or `outbox up` that is under way has ended.

    PostgreSQL refuses its users seconds before the last server of the stack is gone.
    """
    with contextlib.suppress(FileNotFoundError), (directory / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return running_stack(directory)


def bring_down(directory: Path, *, with_data: bool = False) -> State | None:
    """Stop exactly what was started in the directory; remove its data too if asked. None when there was nothing."""
    if not directory.is_dir():
        return None
    with locked(directory / "lock"):
        state = State.load(directory)
        if state is None:
            return None
        end_processes(state, at_once=with_data)
        compose.down(state, with_data=with_data)
        state.supervisor = None
        for server in state.servers.values():
            server.process = None
        state.save()
        if with_data:
            wipe(state)
        return state


def _fits(state: State, options: StackOptions) -> bool:
    """Return whether a running stack is what is wished for."""
    for server, given in ((state.postgres, options.dsn), (state.kafka, options.bootstrap_servers)):
        if given and given != server.address:
            return False
        if not given and (server.kind is Kind.GIVEN or server.kind not in ORIGINS[options.origins]):
            return False
    return True
