"""A whole demo: servers, performance, proof, figures; and what is left behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from outbox_local.demo.figures import Figures, measure
from outbox_local.demo.flights import read_flights
from outbox_local.demo.history import prove_history
from outbox_local.demo.outcome import DemoResult
from outbox_local.demo.performance import play
from outbox_local.demo.piece import Piece
from outbox_local.demo.proof import prove
from outbox_local.demo.sabotage import Sabotage, sabotage
from outbox_local.demo.show import Show
from outbox_local.demo.tables import Tables
from outbox_local.demo.venue import Venue, venue
from outbox_local.demo.warehouse import Warehouse, WarehouseError
from outbox_local.stack.prepare import StackOptions
from outbox_relay.proving.children import ChildError
from outbox_relay.text.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Programme:
    """What is asked of a demo."""

    flights: int
    producers: int
    seed: int
    rate: float | None
    sabotage: Sabotage | None
    stack_directory: Path
    """Where a stack may be running that the demo can use."""
    options: StackOptions
    keep: bool
    journals: Path | None
    """An empty or new directory for the journals, which stay there; None: a temporary one."""
    warehouse: Path | None = None
    """An empty or new directory to which the history is exported, and proven there; None: it is not."""


class JournalsError(OperatorError):
    """The journals cannot be written there."""


def run(programme: Programme, console: Console) -> DemoResult:
    """Play and prove.

    The journals are removed at the end, unless they are to be kept, or something has failed: they are its evidence.
    """
    began = time.monotonic()
    flights = read_flights(programme.flights)
    warehouse = None if programme.warehouse is None else Warehouse.ready(programme.warehouse, console)
    directory = _directory(programme.journals)
    keep_journals = programme.keep or programme.journals is not None
    try:
        console.print(
            f"{programme.flights:,} flights, {programme.producers} producers, seed {programme.seed}"
        )
        piece = Piece(flights, programme.producers, programme.seed, programme.rate, directory)
        tables = _perform(programme, piece, warehouse, console)
        console.print("proving from the source, the producers' journals and the consumer's …")
        records = piece.records()
        if programme.sabotage is not None:
            records = iter(sabotage(records, programme.sabotage, programme.seed))
        proof = prove(flights, piece.entries(), records, seed=programme.seed, crash=piece.crash())
        history = None
        if tables is not None:
            console.print("proving the warehouse from the source and the producers' journals …")
            history = prove_history(flights, piece.entries(), tables, seed=programme.seed)
        outcome = DemoResult(
            flights=programme.flights,
            producers=programme.producers,
            seed=programme.seed,
            sabotage=programme.sabotage,
            proof=proof,
            figures=_figures(piece),
            seconds=time.monotonic() - began,
            journals=directory,
            history=history,
            warehouse=None if warehouse is None else warehouse.directory,
        )
        keep_journals = keep_journals or not outcome.holds
        return outcome if keep_journals else replace(outcome, journals=None)
    except (ChildError, WarehouseError):
        keep_journals = True
        raise
    finally:
        if not keep_journals:
            shutil.rmtree(directory, ignore_errors=True)


def _directory(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="outbox-demo-"))
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        raise JournalsError(f"--journals: {given} is not empty; give a new directory")
    return given.absolute()


def _perform(
    programme: Programme, piece: Piece, warehouse: Warehouse | None, console: Console
) -> Tables | None:
    """Play the piece; answer what a warehouse then says of it, as long as its database is there."""
    with ExitStack() as stack:
        with console.status("inspecting this machine") as status:

            def report(line: str) -> None:
                status.update(line)
                if not line.startswith("fetching"):
                    console.print(line, markup=False, soft_wrap=True)

            place = stack.enter_context(
                venue(programme.stack_directory, programme.options, keep=programme.keep, report=report)
            )
        with Show(console, len(piece.flights)) as show:
            play(piece, place, show)
        tables = None if warehouse is None else warehouse.export(place, console)
        if programme.keep:
            _tell_what_is_kept(place, console)
        return tables


def _tell_what_is_kept(place: Venue, console: Console) -> None:
    console.print(
        f"kept: database {place.database} and topic {place.topic} on {place.servers}. Inspect them:\n"
        f'  eval "$(outbox env)"; export OUTBOX_DSN="${{OUTBOX_DSN%/*}}/{place.database}"; outbox status',
        markup=False,
        soft_wrap=True,
    )


def _figures(piece: Piece) -> Figures | None:
    try:
        return measure(piece.entries(), piece.records(), piece.crash())
    except ValueError:
        return None
