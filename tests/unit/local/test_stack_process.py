"""A process is known by pid, start time and boot; a signal reaches that process or nobody."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from outbox_local.stack.process import Identity, boot_id, family


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    identity = Identity.of(process.pid)
    assert identity is not None
    return identity


def test_running_process_is_alive_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert identity.alive()
    sleeper.kill()
    sleeper.wait()
    assert not identity.alive()


def test_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
    assert not identity.alive()
    assert Identity.of(sleeper.pid) is None


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another boot"}])
def test_other_process_of_the_same_pid_is_neither_taken_for_it_nor_signalled(
    sleeper: subprocess.Popen[bytes], change: dict[str, Any]
) -> None:
    stranger = dataclasses.replace(identity_of(sleeper), **change)
    assert not stranger.alive()
    stranger.send(signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity_of(sleeper).alive()


def test_identity_names_this_boot() -> None:
    identity = Identity.of(os.getpid())
    assert identity is not None
    assert (identity.pid, identity.boot) == (os.getpid(), boot_id())


def test_family_is_the_process_and_its_children(sleeper: subprocess.Popen[bytes]) -> None:
    found = family(os.getpid())
    assert Identity.of(os.getpid()) in found
    assert identity_of(sleeper) in found
    assert Identity.of(1) not in found
