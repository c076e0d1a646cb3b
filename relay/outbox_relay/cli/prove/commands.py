"""`outbox prove`: the promises, checked by a run with faults on the user's own servers."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import (
    Command,
    advice,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
)
from outbox_relay.cli.prove.page import page_of
from outbox_relay.cli.types import Number
from outbox_relay.database.connections import place as place_of
from outbox_relay.proving.faults import FaultKind, read_kinds
from outbox_relay.proving.outcome import ProofOutcome
from outbox_relay.proving.place import Belongings, Servers, left_behind, remove, requirements
from outbox_relay.proving.run import ProofPlan, run_proof
from outbox_relay.publisher.shard import Guarantee

MOST_MESSAGES = 1_000_000


class CannotRunError(click.ClickException):
    """The run shows nothing, because it could not be made."""

    exit_code = 2


class FaultsType(click.ParamType[list[FaultKind]]):
    """Kinds of faults, separated by commas, or `none`."""

    name = "faults"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[FaultKind]:
        """Read them."""
        if isinstance(value, list):
            return value
        try:
            return read_kinds(str(value))
        except ValueError:
            self.fail(
                f"{value!r}; expected some of {', '.join(FaultKind)}, separated by commas, or none",
                param,
                ctx,
            )


@click.command(cls=Command)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@click.option(
    "--minutes",
    type=Number(0.1, 1440),
    default=2.0,
    show_default=True,
    metavar="MINUTES",
    help="How long messages are sent while faults happen.",
)
@click.option(
    "--rate",
    type=Number(1, 5_000),
    default=100.0,
    show_default=True,
    metavar="PER SECOND",
    help="Transactions per second.",
)
@click.option(
    "--faults",
    type=FaultsType(),
    default=",".join(FaultKind),
    show_default=True,
    metavar="KIND,…",
    help="What happens to the run's own processes: kill, pause, stop, disconnect (from PostgreSQL); or none.",
)
@click.option(
    "--delivery",
    type=click.Choice([str(one) for one in Guarantee]),
    default=str(Guarantee.AT_LEAST_ONCE),
    show_default=True,
    help="What the run's relays promise. at-least-once allows a message to come again after a fault of a relay.",
)
@click.option(
    "--seed",
    type=click.IntRange(1, 999_999),
    metavar="N",
    help="Decides messages and faults, and names what is made. [default: any, and it is printed]",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, writable=True),
    metavar="FILE",
    help="Write the result as one self-contained page, too.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--clean", is_flag=True, help="Only remove what runs have left that were killed.")
@json_option
def prove(
    *,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    minutes: float,
    rate: float,
    faults: list[FaultKind],
    delivery: str,
    seed: int | None,
    html: Path | None,
    yes: bool,
    clean: bool,
    as_json: bool,
) -> None:
    """Check every promise on your own servers, while processes are killed.

    Makes a database and a topic of its own on your PostgreSQL and Kafka, and starts relays, a checker, producers and
    consumers on them. Producers send plain and half messages and keep a journal; a stock consumer reads what is
    committed; the inbox applies it. Meanwhile faults hit these processes and no others, each seen to take effect. At
    the end what arrived is held against the journals. Everything made is removed, also after Ctrl-C; after kill -9 by
    the next run, or by --clean.

    Needs a user that may create databases, and topics that begin with outbox-prove-. Exit codes: 0 every promise was
    kept, 1 one is broken (the first messages are named), 2 the run could not be made.

    \b
    Examples:
      outbox prove --minutes 5 --html proof.html
      outbox prove --delivery exactly-once --faults kill,pause
      outbox prove --minutes 1 --yes --json      for scripts
      outbox prove --clean
    """
    servers = Servers(dsn, bootstrap_servers, kafka)

    def tell(line: str) -> None:
        click.echo(line, err=True)

    with _exit_codes():
        require_handed_on(kafka)
        if minutes * 60 * rate > MOST_MESSAGES:
            raise CannotRunError(
                f"--minutes {minutes:g} and --rate {rate:g} are more than {MOST_MESSAGES:,} messages, which the check "
                "keeps in memory\nchoose a lower --rate, or run it several times"
            )
        if html is not None and not html.absolute().parent.is_dir():
            raise CannotRunError(f"--html {html}: there is no such directory")
        for old in left_behind(servers):
            tell("an earlier run was killed:")
            remove(servers, old, tell)
        if clean:
            return
        plan = ProofPlan(minutes * 60, rate, faults, delivery, seed or secrets.randbelow(999_999) + 1)
        _announce(plan, servers, is_sure=yes)
        outcome = run_proof(plan, servers, tell)
        if html is not None:
            html.write_text(page_of(outcome), encoding="utf-8")
            tell(f"page: {html}")
    show(outcome, as_json=as_json)


def require_handed_on(kafka: dict[str, str]) -> None:
    """Refuse settings that processes cannot be given by OUTBOX_KAFKA_CONFIG, which is separated by spaces."""
    for name, value in kafka.items():
        if value.split() != [value]:
            raise CannotRunError(
                f"--kafka-config {name}: the run's relays cannot be given a value with spaces"
            )


def show(outcome: ProofOutcome, *, as_json: bool) -> None:
    """Print the outcome; exit with 1 when a promise is broken."""
    if as_json:
        output.emit_json(outcome.as_json())
    else:
        for line, colour in outcome.lines():
            click.secho(line, fg=colour or None)
    if not outcome.kept:
        raise click.exceptions.Exit(1)


def _announce(plan: ProofPlan, servers: Servers, *, is_sure: bool) -> None:
    """State what will be made, and ask; nothing is made yet."""
    own = Belongings.of(plan.seed)
    notes = requirements(servers, own)
    faults = ", ".join(plan.faults) or "none"
    seconds = plan.seconds
    lines = [
        f"seed {plan.seed}; for {seconds:.0f} s {plan.rate:g} transactions/s, {plan.delivery}, faults: {faults}",
        f"on the server of {place_of(servers.dsn)}: a database {own.database}, and the outbox's roles if not there",
        f"on Kafka at {servers.bootstrap_servers}: a topic {own.topic}, and groups of the run's consumers and relays",
        f"about {plan.rate * seconds:,.0f} messages of 100 bytes are written to both; all is removed at the end",
        *notes,
    ]
    for line in lines:
        click.echo(line, err=True)
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CannotRunError(
            "standard input is not a terminal, where you could be asked\nstate that you agree: outbox prove --yes"
        )
    click.confirm("begin?", abort=True, err=True)


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn what can be repaired into exit code 2, and signals into theirs; both after everything is removed."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except click.Abort:
        raise CannotRunError("nothing was made") from None
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        text = advice(error)
        if text is None:
            raise
        raise CannotRunError(text) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
