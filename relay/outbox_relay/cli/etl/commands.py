"""`outbox etl`: the warehouse job, on this machine or on a Spark cluster."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import click

from outbox_etl.options.settings import REBASE
from outbox_etl.reconcile import request
from outbox_etl.warehouse import maintain_request
from outbox_relay.cli import streams
from outbox_relay.cli.etl import render
from outbox_relay.cli.etl.options import arguments, etl_options, secrets
from outbox_relay.cli.etl.progress import ProgressDisplay
from outbox_relay.cli.options import (
    CommandGroup,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
)
from outbox_relay.text import formatting
from outbox_relay.warehouse import child, prepare


@click.group(cls=CommandGroup)
def etl() -> None:
    """Export the history of every message into a warehouse, and prove it complete; needs the extra `etl`.

    \b
      outbox etl run --warehouse /data/warehouse         what is new since the last run
      outbox etl reconcile --warehouse /data/warehouse   PostgreSQL, Kafka and warehouse agree
      outbox etl maintain --warehouse /data/warehouse    once a week: few large files, no old ones
      outbox etl status --warehouse /data/warehouse      up to where it is filled

    Every command may be killed at any time and run again. The role outbox_etl may do all of it.
    """


@etl.command("run")
@etl_options()
@dsn_option
@json_option
def run_command(*, as_json: bool, **given: Any) -> None:
    """Export all that has ended since the last run.

    The first run exports everything. Exactly the transactions below the oldest one that still runs are read; a run
    that was killed is done again by the next one, and nothing doubles.
    """
    _work("run", given, as_json=as_json)


@etl.command()
@etl_options(REBASE)
@dsn_option
@json_option
def backfill(*, as_json: bool, **given: Any) -> None:
    """Read all that PostgreSQL still holds again, and heal what differs.

    Nothing is deleted from the warehouse: what retention has dropped from PostgreSQL stays there.
    """
    _work("backfill", given, as_json=as_json)


@etl.command()
@etl_options()
@dsn_option
@json_option
def marts(*, as_json: bool, **given: Any) -> None:
    """Rebuild the daily marts of all days.

    A run does it for the days that changed, also after one that was killed; this is for marts that somebody altered.
    """
    _work("marts", given, as_json=as_json)


@etl.command()
@etl_options()
@dsn_option
@json_option
def status(*, as_json: bool, **given: Any) -> None:
    """Show up to where the warehouse is filled."""
    _work("status", given, as_json=as_json)


@etl.command()
@etl_options(*request.OPTIONS)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def reconcile(*, as_json: bool, kafka: dict[str, str], **given: Any) -> None:
    """Compare PostgreSQL, Kafka and warehouse; certify what agrees, exit with 1 when something does not.

    It names every message that is missing, doubled, altered or out of order, and where. `outbox history drop` drops
    nothing that has no certificate.
    """
    _work("reconcile", {**given, "kafka_config": kafka}, as_json=as_json)


@etl.command()
@etl_options(*maintain_request.OPTIONS)
@dsn_option
@json_option
def maintain(*, as_json: bool, **given: Any) -> None:
    """Join small files, expire old snapshots, delete orphaned files; once a week is often enough.

    Every run adds files, and every query opens them all. No row changes, and readers are not disturbed: what they read
    stays for --keep days. No run or reconcile works on the same warehouse meanwhile: the second is refused, and a run
    goes on where it was.
    """
    _work("maintain", given, as_json=as_json)


def _work(command: str, given: dict[str, Any], *, as_json: bool) -> None:
    """Run one command of the job, and end as it ended."""
    prepare.require_packages(fetching=not given["jars"])
    with ProgressDisplay(secrets(given)) as progress:
        home = prepare.java_home(progress.report)
        given["jars"] = prepare.jars(given["jars"], progress.report)
        given["warehouse"] = prepare.local_path(given["warehouse"])
        try:
            ended = child.run(
                [command, *arguments(given), "--json"], prepare.environment(home), progress.hear
            )
        except child.SignalReceived as stopped:
            progress.report(f"stopped by {signal.Signals(stopped.number).name}; run again to go on")
            sys.exit(128 + stopped.number)
    answer = _answer(ended.output)
    if answer is None:
        last = progress.others or f"  {progress.last or '(no output)'}"
        answer = {"error": f"the job ended with exit code {ended.code}:\n{last}", "kind": "Crash"}
        ended = child.Ended(ended.code or 1, "")
    if "error" in answer:
        answer["error"] = progress.masked(str(answer["error"]))
    if as_json:
        click.echo(json.dumps(answer, sort_keys=True, ensure_ascii=not streams.takes_any_text()))
    elif "error" not in answer:
        render.show(command, answer)
    elif answer["error"] != progress.last:
        click.echo(f"Error: {_safe(answer['error'])}", err=True)
    sys.exit(ended.code)


def _answer(text: str) -> dict[str, Any] | None:
    """The job's answer: the last line that it wrote; None when it did not come so far."""
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _safe(text: str) -> str:
    return "\n".join(formatting.printable(line) for line in text.splitlines())
