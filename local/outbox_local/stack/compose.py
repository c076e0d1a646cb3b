"""The stack's servers as containers: a thin skin over `docker compose`."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import as_file, files

from outbox_local.stack.choice import Kind
from outbox_local.stack.ports import LOOPBACK, Reservation
from outbox_local.stack.prepare import Report
from outbox_local.stack.state import State
from outbox_relay.downloads.errors import StackError

LIMIT = 600.0
"""Seconds for images to arrive and servers to become healthy."""


def up(state: State, report: Report) -> None:
    """Start those servers that Docker shall run, and note their addresses. Raises StackError when compose fails.

    Ports are chosen here and not by Docker, because a Kafka broker must know the address its clients will
    use.
    """
    names = [name for name, server in state.servers.items() if server.kind is Kind.DOCKER]
    if not names:
        return
    for name in names:
        server = state.servers[name]
        reserved = Reservation(*server.ports)
        server.ports = [reserved.port]
        reserved.release()
    postgres, kafka = state.postgres, state.kafka
    if postgres.kind is Kind.DOCKER:
        postgres.address = f"postgresql://postgres:{postgres.password}@{LOOPBACK}:{postgres.ports[0]}/outbox"
    if kafka.kind is Kind.DOCKER:
        kafka.address = f"{LOOPBACK}:{kafka.ports[0]}"
    report(f"starting containers: {', '.join(names)} (the first time fetches their images)")
    _compose(state, "up", "--detach", "--wait", *names)


def down(state: State, *, with_data: bool) -> None:
    """Stop and remove the containers of the stack; with their volumes if `with_data`."""
    if any(server.kind is Kind.DOCKER for server in state.servers.values()):
        _compose(state, "down", *(["--volumes"] if with_data else []))


def healthy(state: State) -> bool:
    """Return whether every server that Docker runs is up."""
    names = {name for name, server in state.servers.items() if server.kind is Kind.DOCKER}
    if not names:
        return True
    try:
        listed = _compose(state, "ps", "--services", "--status", "running")
    except StackError:
        return False
    return names <= set(listed.split())


def _compose(state: State, *arguments: str) -> str:
    environment = {
        **os.environ,
        "OUTBOX_POSTGRES_PASSWORD": state.postgres.password,
        "OUTBOX_POSTGRES_PORT": str((state.postgres.ports or [5432])[0]),
        "OUTBOX_KAFKA_PORT": str((state.kafka.ports or [9092])[0]),
    }
    with as_file(files("outbox_local.stack") / "compose.yml") as path:
        command = [
            "docker",
            "compose",
            "--project-name",
            state.compose_project,
            "--file",
            str(path),
            *arguments,
        ]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StackError(f"docker compose {arguments[0]}: {error}") from error
    if done.returncode != 0:
        raise StackError(f"docker compose {arguments[0]} failed: {done.stderr.strip()[-800:]}")
    return done.stdout
