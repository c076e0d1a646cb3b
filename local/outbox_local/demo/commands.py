"""`outbox demo`: the flights of New York 2013 through the outbox, on real servers, proven at the end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from outbox_local.demo.ending import end
from outbox_local.demo.flights import TWO_WEEKS, WHOLE_YEAR
from outbox_local.demo.report import write_report
from outbox_local.demo.run import Programme, run
from outbox_local.demo.sabotage import Sabotage
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.options import from_option, given_servers_options, state_option
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.state import state_directory
from outbox_relay.cli import output
from outbox_relay.cli.options import Command, json_option
from outbox_relay.cli.types import Number
from outbox_relay.downloads.errors import StackError
from outbox_relay.warehouse.child import SignalReceived

FEWEST = 100


@click.command(cls=Command)
@click.option("--full", is_flag=True, help=f"The whole year, {WHOLE_YEAR:,} flights, in some minutes.")
@click.option(
    "--flights",
    type=click.IntRange(FEWEST, WHOLE_YEAR),
    default=TWO_WEEKS,
    show_default=True,
    metavar="NUMBER",
    help="The first so many of the year's flights; 12,208 are two weeks, 27,004 are January.",
)
@click.option(
    "--producers",
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    help="Processes that write at the same time.",
)
@click.option(
    "--rate",
    type=Number(1),
    metavar="PER SECOND",
    help="Transactions per second of all producers together; without it, as many as they can.",
)
@click.option(
    "--seed",
    type=int,
    default=2013,
    show_default=True,
    help="Decides which flights roll back.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path, writable=True),
    metavar="FILE.html",
    help="Write charts and proof as one HTML file too.",
)
@click.option(
    "--journals",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Leave the journals of producers and consumer there: what the proof is made from.",
)
@click.option(
    "--warehouse",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Export the history there too, as Parquet files, and prove it as well (extra `etl`).",
)
@click.option("--keep", is_flag=True, help="Leave servers, database, topic and journals, to inspect them.")
@given_servers_options("Use this PostgreSQL, as a role that may create a database.")
@from_option("Where servers of the demo's own may come from, as for `outbox up`.")
@state_option("Directory of the stack that is used when it runs.")
@click.option("--sabotage", "wreck", type=click.Choice([kind.value for kind in Sabotage]), hidden=True)
@json_option
def demo(
    *,
    full: bool,
    flights: int,
    producers: int,
    rate: float | None,
    seed: int,
    report: Path | None,
    journals: Path | None,
    warehouse: Path | None,
    keep: bool,
    dsn: str,
    bootstrap_servers: str,
    origins: str,
    state: Path,
    wreck: str | None,
    as_json: bool,
) -> None:
    """Play the flights of New York 2013 through the outbox, and prove that none was lost.

    Producers enter real flights: each transaction updates the row of its aircraft and sends a message; three in a
    hundred roll back. The relay publishes to Kafka, is killed with SIGKILL half-way and started again. A stock
    Kafka consumer reads. Then what it read is held against the source and the producers' own journals: every
    committed flight is there, in order per aircraft, no rolled-back one is, and nothing else.

    It uses the servers that are given, else those of `outbox up` if they run, else it starts its own for the time.
    It makes a database and a topic of its own, and removes them. Exit codes: 0 proven, 1 not.

    \b
    Examples:
      outbox demo                       two weeks of January, in less than a minute
      outbox demo --full                the whole year
      outbox demo --report flights.html
      outbox demo --warehouse flights   and its history in a warehouse, proven too
    """
    console = Console(stderr=as_json, highlight=False)
    signal.signal(signal.SIGTERM, end)
    programme = Programme(
        flights=WHOLE_YEAR if full else flights,
        producers=producers,
        seed=seed,
        rate=rate,
        sabotage=None if wreck is None else Sabotage(wreck),
        stack_directory=state_directory(state),
        options=StackOptions(dsn, bootstrap_servers, AllowedOrigins(origins)),
        keep=keep,
        journals=journals,
        warehouse=warehouse,
    )
    try:
        outcome = run(programme, console)
    except StackError as error:
        raise click.ClickException(str(error)) from error
    except SignalReceived as stopped:
        sys.exit(128 + stopped.number)
    if as_json:
        output.emit_json(outcome.as_json())
    for line, style in outcome.lines():
        console.print(line, style=style or None, markup=False, soft_wrap=True)
    if report is not None:
        write_report(report, outcome)
        console.print(f"report: {report}", markup=False, soft_wrap=True)
    if outcome.journals is not None:
        console.print(f"journals: {outcome.journals}", markup=False, soft_wrap=True)
    if not outcome.holds:
        sys.exit(1)
