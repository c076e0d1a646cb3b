"""The state file: whole or absent, private, and clear when it cannot be read."""

from __future__ import annotations

import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outbox_local.stack.choice import Kind
from outbox_local.stack.lifecycle import bring_down, running_stack, settled_stack
from outbox_local.stack.process import Identity
from outbox_local.stack.state import ServerState, State, state_directory, state_path
from outbox_relay.downloads.cache import locked
from outbox_relay.downloads.errors import StackError


def a_state(directory: Path) -> State:
    process = Identity(42, 4711, "a boot")
    postgres = ServerState(
        Kind.MACHINE, "found", "postgresql://…", "/data", "/bin", "", [5432], "secret", process
    )
    kafka = ServerState(Kind.GIVEN, "given", "broker:9092")
    return State(directory, postgres, kafka, "/scratch", Identity(43, 4712, "a boot"))


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = a_state(tmp_path)
    written.save()
    assert State.load(tmp_path) == written


def test_state_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    a_state(tmp_path).save()
    assert stat.S_IMODE(state_path(tmp_path).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [state_path(tmp_path).name]  # no part is left behind


def test_state_of_dead_processes_is_not_running(tmp_path: Path) -> None:
    assert not a_state(tmp_path).running()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged .* move it away and run `outbox up` again"),
        ("{}", "is damaged"),
        ('{"version": 99}', "was written by another version"),
    ],
)
def test_state_that_cannot_be_understood_is_refused_by_name(
    tmp_path: Path, content: str, message: str
) -> None:
    state_path(tmp_path).write_text(content)
    with pytest.raises(StackError, match=message) as refused:
        State.load(tmp_path)
    assert str(state_path(tmp_path)) in str(refused.value)


def test_no_stack_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        StackError, match=r"no stack was started in .*: run `outbox up` or `outbox dev`, or change to"
    ):
        running_stack(tmp_path)


def test_stack_that_died_is_an_error_that_names_what_is_missing(tmp_path: Path) -> None:
    a_state(tmp_path).save()
    with pytest.raises(StackError, match=r"is down \(postgres does not run\): `outbox up` starts it again"):
        running_stack(tmp_path)


def test_nothing_is_brought_down_and_nothing_made_where_nothing_was_started(tmp_path: Path) -> None:
    assert bring_down(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()


def test_state_directory_is_the_given_then_the_environment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTBOX_STATE", raising=False)
    assert state_directory() == tmp_path / ".outbox"
    monkeypatch.setenv("OUTBOX_STATE", str(tmp_path / "environment"))
    assert state_directory() == tmp_path / "environment"
    assert state_directory(tmp_path / "given") == tmp_path / "given"


def test_stack_that_is_going_down_is_found_down_and_not_running(tmp_path: Path) -> None:
    """`outbox down` holds the lock until the last process is gone; the first one's users fail before."""
    with subprocess.Popen(["sleep", "600"]) as server:
        state = a_state(tmp_path)
        state.supervisor = state.postgres.process = Identity.of(server.pid)
        state.save()
        assert settled_stack(tmp_path).running()
        with ThreadPoolExecutor(1) as pool:
            with locked(tmp_path / "lock"):
                found = pool.submit(settled_stack, tmp_path)
                with pytest.raises(TimeoutError):
                    found.result(0.2)
                server.kill()
                server.wait()
            with pytest.raises(StackError, match="is down"):
                found.result(10)
