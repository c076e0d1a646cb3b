"""How `outbox db check` and `outbox doctor` print what they found, and end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

import click

from outbox_relay.cli import output
from outbox_relay.database import connections
from outbox_relay.operations.database_checks import Check


def show_and_exit(dsn: str, found: Sequence[Check], *, as_json: bool) -> NoReturn:
    """Print the checks, and then what repairs them; exit with 1 if one has failed, else with 0."""
    failed = any(check.level == "FAILED" for check in found)
    if as_json:
        output.emit_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    else:
        click.echo(connections.place(dsn))
        output.table(
            ["check", "result", "found"],
            [(check.name, check.level, check.found) for check in found],
            text=("found",),
        )
        for check in found:
            if check.repair:
                click.echo(f"{check.name}: {check.repair}")
    sys.exit(1 if failed else 0)
