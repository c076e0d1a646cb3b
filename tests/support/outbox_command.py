"""Runs the `outbox` command inside the test's process, as a shell would: arguments, environment, exit code."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from click.testing import CliRunner

from outbox_relay.cli.main import main

CLEAN = {
    "OUTBOX_DSN": None,
    "OUTBOX_BOOTSTRAP_SERVERS": None,
    "OUTBOX_JSON": None,
    "COLUMNS": "200",
}


class Ran(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


def outbox(*arguments: str, **environment: str) -> Ran:
    """Run `outbox …`; `OUTBOX_DSN="…"` and the like as keywords. A defect (a traceback) fails the test."""
    return outbox_reading(None, *arguments, **environment)


def outbox_reading(stdin: bytes | None, *arguments: str, **environment: str) -> Ran:
    """Run `outbox …` with this standard input."""
    runner = CliRunner(env={**CLEAN, **environment})
    result = runner.invoke(main, [str(argument) for argument in arguments], input=stdin, prog_name="outbox")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def succeed(*arguments: str, **environment: str) -> Ran:
    """Run `outbox …` and insist on exit code 0."""
    ran = outbox(*arguments, **environment)
    assert ran.code == 0, f"outbox {' '.join(arguments)} ended with {ran.code}:\n{ran.out}{ran.err}"
    return ran
