"""The command line of the job: what spark-submit runs, and `python -m outbox_etl`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a file by spark-submit: the package lies beside it
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from outbox_etl.errors import EtlError
from outbox_etl.failures import explained, masked
from outbox_etl.options import option
from outbox_etl.options.parser import Parser, check_settings, secrets
from outbox_etl.options.settings import COMMON_OPTIONS, REBASE, Settings, from_arguments
from outbox_etl.reconcile import request as reconcile_request
from outbox_etl.reconcile import vouching
from outbox_etl.report.writer import ReportWriter
from outbox_etl.terminal import printable
from outbox_etl.warehouse import maintain_request

if TYPE_CHECKING:
    from outbox_etl.warehouse.marts import MartsOfRun

NOT_MADE = 3
"""The exit code of a run that has done everything but a mart."""
OWN = {
    "backfill": (REBASE,),
    "reconcile": reconcile_request.OPTIONS,
    "maintain": maintain_request.OPTIONS,
    "vouch": vouching.OPTIONS,
}
"""The options that one command has and the others do not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 done, 1 refused, failed or not proven, 2 wrongly called, 3 exported and a mart not made.
    """
    given = parser().parse_args(arguments)
    try:
        settings = from_arguments(given)
        check_settings(settings)
        answer = work(given, settings)
    except Exception as error:  # noqa: BLE001  (py4j wraps every error of Java in one of its own; all are reported)
        known = explained(error, secrets(given), warehouse=given.warehouse)
        return crash(error, given) if known is None else fail(known, given)
    lines = answer.pop("lines", ())
    if given.json:
        sys.stdout.write(f"{json.dumps(answer, sort_keys=True)}\n")
    else:
        sys.stdout.writelines(f"{printable(str(line))}\n" for line in lines)
    return int(answer.get("exit_code", 0))


def parser() -> Parser:
    """Build the parser of the commands and their options."""
    top = Parser(prog="outbox_etl", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "export all that has ended since the last run"),
        ("backfill", "read all that PostgreSQL still holds again, and heal what differs"),
        ("marts", "rebuild the daily marts of all days (a run rebuilds the days that it touched)"),
        ("status", "print up to where the warehouse is filled"),
        (
            "reconcile",
            "prove PostgreSQL, Kafka and the warehouse complete against each other; exit 1 on any problem",
        ),
        ("maintain", "join small files, expire old snapshots, delete orphaned files; no row changes"),
        ("vouch", "print why what was certified may be gone; `outbox history drop` asks"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        option.add(command, (*OWN.get(name, ()), *COMMON_OPTIONS))
        command.add_argument("--json", action="store_true", help="Print JSON for machines.")
    return top


def work(given: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Do what was requested in a Spark session; return what was done."""
    from outbox_etl.export import backfill, export  # noqa: PLC0415  (settings are checked before Spark is loaded)
    from outbox_etl.reconcile.run import reconcile  # noqa: PLC0415
    from outbox_etl.session import start  # noqa: PLC0415
    from outbox_etl.warehouse.maintain import maintain  # noqa: PLC0415
    from outbox_etl.warehouse.marts import refresh  # noqa: PLC0415
    from outbox_etl.warehouse.opening import open_target  # noqa: PLC0415

    verification = reconcile_request.requested(given) if given.command == "reconcile" else None
    maintenance = maintain_request.requested(given) if given.command == "maintain" else None
    evidence = vouching.requested(given, settings) if given.command == "vouch" else None
    with ExitStack() as last, ReportWriter(given, settings, say) as report:
        spark = start(settings)
        last.callback(spark.stop)
        target = open_target(spark, settings)
        report.read_from(spark, target)
        if given.command in ("run", "backfill"):
            if given.command == "run":
                exported = export(spark, settings, target, say)
            else:
                exported = backfill(spark, settings, target, say, rebase=given.rebase)
            marts = refresh(spark, settings, target, say)
            return report.finish(exported.as_dict() | made(marts, given))
        if given.command == "marts":
            marts = refresh(spark, settings, target, say, everything=True)
            for fault in marts.faults.values():
                raise fault
            return report.finish({"target": settings.target} | made(marts, given))
        if verification is not None:
            outcome = reconcile(spark, settings, target, verification, say)
            return report.finish({**outcome.as_dict(), "lines": outcome.lines()})
        if maintenance is not None:
            done = maintain(spark, settings, target, maintenance, say)
            return report.finish({**done.as_dict(), "lines": done.lines()})
        if evidence is not None:
            doubt = vouching.doubt(target, evidence)
            return report.finish({"target": settings.target, "doubt": doubt.text if doubt else ""})
        mark = target.watermark()
        return report.finish({"target": settings.target, "watermark": asdict(mark) if mark else None})


def made(marts: MartsOfRun, given: argparse.Namespace) -> dict[str, Any]:
    """The days whose marts were made, and why a mart was not: a fault of its own, with an exit code of its own."""
    answer: dict[str, Any] = {"mart_days": [day.isoformat() for day in marts.days]}
    if not marts.faults:
        return answer
    answer |= {"mart_faults": {}, "exit_code": NOT_MADE}
    for name, error in marts.faults.items():
        known = explained(error, secrets(given), warehouse=given.warehouse)
        if known is None:
            crash(error, given)
        answer["mart_faults"][name] = masked(str(known or type(error).__name__), secrets(given))
        say(f"{name} was not made, the next run makes it again: {answer['mart_faults'][name]}")
    return answer


def say(text: str) -> None:
    """Report progress on standard error, next to the result on standard output."""
    sys.stderr.write(f"outbox-etl: {printable(text)}\n")
    sys.stderr.flush()


def fail(error: EtlError, given: argparse.Namespace) -> int:
    """Report what went wrong, in one line and without secrets."""
    text = masked(" ".join(str(error).split()), secrets(given))
    if given.json:
        sys.stdout.write(f"{json.dumps({'error': text, 'kind': type(error).__name__})}\n")
    say(text)
    return 1


def crash(error: Exception, given: argparse.Namespace) -> int:
    """Print the traceback of an unforeseen error: without secrets and control characters."""
    told = "".join(traceback.format_exception(error))
    sys.stderr.write(printable(masked(told, secrets(given)), keep="\n\t"))
    sys.stderr.flush()
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
