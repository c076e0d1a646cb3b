"""`manage.py outbox …`: the command `outbox` with the database of an alias."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from psycopg import pq
from psycopg.conninfo import make_conninfo

from outbox.adapters.django.revisions import outbox_aliases
from outbox.adapters.django.sending import backend_fault


class Command(BaseCommand):  # type: ignore[misc]
    """Runs `outbox` with OUTBOX_DSN of an alias; the password is not among its arguments."""

    help = (
        "Runs a command of outbox on a database of DATABASES, as: manage.py outbox status. "
        "Options of Django and --database stand before the command."
    )
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take an alias, and whatever `outbox` takes."""
        parser.add_argument("--database", help="alias of DATABASES; default: the first of OUTBOX_DATABASES")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what to run; --help lists it")

    def handle(self, *args: Any, arguments: list[str], database: str | None, **options: Any) -> None:
        """Become the command, so that signals reach it; called by code, run it.

        Raises:
            CommandError: the alias is not one for the outbox, or the command that code has called failed.
        """
        alias = database or outbox_aliases()[0]
        if alias not in connections.settings:
            raise CommandError(
                f"--database: {alias!r} is not in DATABASES; allowed: {', '.join(connections.settings)}"
            )
        fault = backend_fault(connections[alias])
        if fault is not None:
            raise CommandError(f"--database: {fault}")
        command = [sys.executable, "-m", "outbox_relay", *(arguments or ["--help"])]
        environment = {**os.environ, "OUTBOX_DSN": dsn_of(alias), "OUTBOX_CALLED_AS": "manage.py outbox"}
        if self._called_from_command_line:
            self.stdout.flush()
            os.execve(sys.executable, command, environment)  # noqa: S606  (nothing is interpreted by a shell)
        ran = subprocess.run(command, env=environment, check=False)
        if ran.returncode:
            raise CommandError(f"outbox {' '.join(arguments)} failed", returncode=ran.returncode)


def dsn_of(alias: str) -> str:
    """The settings of an alias as libpq takes them."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = connections[alias].get_connection_params()
    return make_conninfo(**{name: value for name, value in given.items() if name in known})
