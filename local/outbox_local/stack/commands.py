"""`outbox up`, `outbox down` and `outbox env`: a PostgreSQL and a Kafka broker on this machine."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import click
from rich.console import Console

from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.lifecycle import bring_down, bring_up, running_stack
from outbox_local.stack.options import from_option, given_servers_options, state_option
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.state import State, state_directory
from outbox_relay.cli.options import Command

_state_option = state_option("Directory of the stack: data, logs and state file.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for machines.")


@click.command(cls=Command)
@_state_option
@from_option(
    "Where servers may come from. auto: Docker when an engine responds, else embedded. embedded: processes of "
    "this machine's own programs, else of wheels. wheels: the same versions everywhere.",
)
@given_servers_options("Use this PostgreSQL; start none.", "Use this Kafka; start none.")
@_json_option
def up(state: Path, origins: str, dsn: str, bootstrap_servers: str, as_json: bool) -> None:
    """Start a local PostgreSQL and Kafka broker, and report where they come from.

    \b
    Each server is chosen in this order, and the choice is printed with its reason:
      1. one that is given (--dsn, --bootstrap-servers)
      2. a container, when a Docker engine responds
      3. a process of this machine's own PostgreSQL or Java
      4. a process of a PostgreSQL or Java that is downloaded once, as a wheel

    They listen on 127.0.0.1 only. Run it again and it reports that they run; after a crash or a reboot it starts
    them again with their data.

    \b
      outbox up
      eval "$(outbox env)"
    """
    console = Console(stderr=as_json, highlight=False)
    began = time.monotonic()
    with console.status("inspecting this machine") as status:

        def report(line: str) -> None:
            status.update(line)
            if not line.startswith("fetching"):
                console.print(line, markup=False, soft_wrap=True)

        options = StackOptions(dsn, bootstrap_servers, AllowedOrigins(origins))
        running, started = bring_up(state_directory(state), options, report=report)
    if as_json:
        click.echo(json.dumps({"started": started, **_described(running)}))
    elif started:
        console.print(
            f'The stack is up after {time.monotonic() - began:.1f} s. Next: eval "$(outbox env)"',
            markup=False,
        )
    else:
        console.print(f'already running, in {running.directory}. Next: eval "$(outbox env)"', markup=False)


@click.command(cls=Command)
@_state_option
@_json_option
def env(state: Path, as_json: bool) -> None:
    """Print the exports that point every command at the running stack, from any directory.

    \b
      eval "$(outbox env)"

    The DSN holds the password of the local database.
    """
    running = running_stack(state_directory(state))
    exports = {
        "OUTBOX_DSN": running.postgres.address,
        "OUTBOX_BOOTSTRAP_SERVERS": running.kafka.address,
        # So that `outbox down` finds this stack from every directory.
        "OUTBOX_STATE": str(running.directory),
    }
    if as_json:
        click.echo(json.dumps(exports))
        return
    for name, value in exports.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@click.command(cls=Command)
@_state_option
@click.option("--wipe", is_flag=True, help="Remove the data, the logs and the state file too.")
@_json_option
def down(state: Path, wipe: bool, as_json: bool) -> None:
    """Stop exactly what `outbox up` started here; the data stays, unless --wipe.

    Stopping a stack that is down already succeeds. Where none was ever started the exit code is 1, because the one
    that you mean may run elsewhere.
    """
    stopped = bring_down(state_directory(state), with_data=wipe)
    if stopped is None:
        raise click.ClickException(
            f"no stack was started in {state_directory(state)}: nothing was stopped\n"
            "name the directory in which `outbox up` ran: outbox down --state DIRECTORY (or OUTBOX_STATE)"
        )
    if as_json:
        click.echo(json.dumps({"stopped": True, "wiped": wipe}))
    else:
        click.echo(
            "The stack is down"
            + (", its data is removed." if wipe else "; `outbox up` starts it again with its data.")
        )


def _described(state: State) -> dict[str, object]:
    """Describe a stack for machines; addresses are `outbox env`'s matter, because one holds a password."""
    return {
        "directory": str(state.directory),
        "servers": {
            name: {"from": server.kind.value, "reason": server.reason, "ports": server.ports}
            for name, server in state.servers.items()
        },
    }
