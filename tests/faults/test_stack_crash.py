"""Whatever is killed with -9, no server is left behind, no stranger is hurt, and the data is there afterwards."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbox_local.stack.process import Identity, boot_id
from outbox_local.stack.state import State
from outbox_local.stack.users import postgres_user
from tests.support.stack_command import StackCommand, emptied_stack, kill
from tests.support.waiting import wait_until

# One process runs these: they share a stack.
SHARED = pytest.mark.xdist_group("stack crash")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackCommand]:
    with emptied_stack(tmp_path / ".outbox") as command:
        yield command


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackCommand]:
    with emptied_stack(tmp_path_factory.mktemp("stack") / ".outbox") as command:
        yield command


@pytest.fixture
def running(shared: StackCommand) -> StackCommand:
    """A stack that runs and has data, whatever an earlier test did to it."""
    shared.succeed("up")
    shared.query("create table if not exists kept as select 42 as answer")
    return shared


@pytest.fixture
def stranger() -> Iterator[Identity]:
    """A process that is no business of ours, run by the user who runs PostgreSQL."""
    user = postgres_user()
    uid, gid = (user.uid, user.gid) if user else (None, None)
    with subprocess.Popen(["sleep", "600"], user=uid, group=gid) as process:
        identity = Identity.of(process.pid)
        assert identity is not None
        yield identity
        process.kill()


MOMENTS: dict[str, Callable[[State], object]] = {
    "the supervisor has started": lambda state: state.supervisor,
    "PostgreSQL has started": lambda state: state.postgres.process,
    "Kafka has started": lambda state: state.kafka.process,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_up_leaves_no_server_behind(stack: StackCommand, moment: str) -> None:
    reached = MOMENTS[moment]
    up = stack.start("up")
    wait_until(lambda: (state := State.load(stack.directory)) and reached(state), moment)
    up.kill()
    up.wait()
    wait_until(lambda: not stack.processes(), "every process of the stack has ended")
    stack.succeed("up")
    assert stack.query("select 1") == [(1,)]


@SHARED
def test_killed_supervisor_takes_its_servers_along(running: StackCommand) -> None:
    before = running.addresses()
    processes = running.processes()
    kill(running.state().supervisor)
    wait_until(lambda: not any(process.alive() for process in processes), "every process has ended")
    failed = running.run("env")
    assert failed.returncode == 1
    assert (
        "is down (postgres and kafka do not run): `outbox up` starts it again with its data" in failed.stderr
    )
    running.succeed("up")
    assert running.addresses() == before
    assert running.query("select answer from kept") == [(42,)]


@SHARED
@pytest.mark.parametrize("name", ["postgres", "kafka"])
def test_up_repairs_a_stack_of_which_one_server_was_killed(running: StackCommand, name: str) -> None:
    before = running.addresses()
    killed = running.state().servers[name].process
    kill(killed)
    assert killed is not None
    wait_until(lambda: not killed.alive(), "the server is dead")
    failed = running.run("env")
    assert f"({name} does not run)" in failed.stderr
    assert "serves on" in running.succeed("up")
    assert running.addresses() == before
    assert running.query("select answer from kept") == [(42,)]


@SHARED
def test_state_of_an_earlier_boot_is_repaired_and_hurts_no_stranger(
    running: StackCommand, stranger: Identity
) -> None:
    before = running.addresses()
    lock = Path(running.state().postgres.data) / "postmaster.pid"
    locked_by = lock.read_text()
    kill(running.state().supervisor)
    wait_until(lambda: not running.processes(), "every process has ended")
    # As after a power cut: the files are as they were, and the pids in them belong to others now.
    state = running.state()
    reused = dataclasses.replace(stranger, boot=f"before {boot_id()}")
    state.supervisor = state.postgres.process = state.kafka.process = reused
    state.save()
    lock.write_text(locked_by.replace(locked_by.split("\n", 1)[0], str(stranger.pid), 1))
    if user := postgres_user():
        os.chown(lock, user.uid, user.gid)
    running.succeed("up")
    assert stranger.alive()
    assert running.addresses() == before
    assert running.query("select answer from kept") == [(42,)]
    running.succeed("down")
    assert stranger.alive()


@SHARED
def test_down_hurts_no_stranger_that_has_the_pid_of_a_dead_server(
    running: StackCommand, stranger: Identity
) -> None:
    kill(running.state().supervisor)
    wait_until(lambda: not running.processes(), "every process has ended")
    state = running.state()
    reused = dataclasses.replace(stranger, started=stranger.started - 1)
    state.supervisor = state.postgres.process = state.kafka.process = reused
    state.save()
    running.succeed("down")
    assert stranger.alive()


def test_stack_in_a_program_dies_with_the_program(tmp_path: Path) -> None:
    program = """
import sys, pathlib
from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.prepare import StackOptions
stack = Stack.start(pathlib.Path(sys.argv[1]), options=StackOptions(origins=AllowedOrigins.EMBEDDED))
print("up", flush=True)
sys.stdin.read()
"""
    command = StackCommand(tmp_path / ".outbox")
    words = [sys.executable, "-c", program, str(command.directory)]
    with subprocess.Popen(
        words, env=command.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        servers = [server.process for server in command.state().embedded.values()]
        assert all(server is not None and server.alive() for server in servers)
        process.kill()
    wait_until(lambda: not command.processes(), "every process of the stack has ended")
    command.succeed("down", "--wipe")
