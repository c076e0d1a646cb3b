"""Which databases one relay process serves: `--dsn`, once or several times, or a file by `--config`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from outbox_relay.cli import configuration
from outbox_relay.cli.configuration import DATABASES
from outbox_relay.cli.options import NO_DATABASE
from outbox_relay.database import connections

F = TypeVar("F", bound=Callable[..., Any])


class Dsn(click.ParamType[Any]):
    """A connection string; a variable of the environment holds one, spaces included."""

    name = "dsn"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Take the variable as a whole."""
        return [rv] if rv else []


def _take_options(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        configuration.use(ctx, value)
        configuration.apply(ctx)
    return value


def databases_options(command: F) -> F:
    """Add `--dsn`, which may be repeated, and `--config`."""
    command = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        callback=_take_options,
        envvar="OUTBOX_CONFIG",
        show_envvar=True,
        metavar="FILE",
        help="TOML file with options, and a table [databases] of names and connection strings: one relay for each.",
    )(command)
    return click.option(
        "--dsn",
        "dsns",
        type=Dsn(),
        multiple=True,
        envvar="OUTBOX_DSN",
        show_envvar=True,
        metavar="DSN",
        help="PostgreSQL: postgresql://user@host:5432/database, or 'host=… dbname=…'; repeatable: one relay for each.",
    )(command)


def chosen(dsns: tuple[str, ...], config: Path | None) -> dict[str, str]:
    """Return the connection strings of the databases by name; no name holds a password.

    Raises:
        UsageError: no database is given, one is given twice, or the file cannot be used.
        DsnError: a connection string cannot be read.
    """
    context = click.get_current_context()
    typed = {
        name
        for name in ("dsns", "config")
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }
    if typed == {"dsns", "config"}:
        raise click.UsageError("give --dsn or --config, not both")
    # OUTBOX_CONFIG may name a file of options, without databases; a --dsn that is typed comes before what it has.
    if config is not None and "dsns" not in typed:
        named = _read(config, required="config" in typed or not dsns)
        if named:
            return named
    if not dsns:
        raise click.UsageError(NO_DATABASE)
    places: dict[str, str] = {}
    for dsn in dsns:
        place = connections.place(dsn)
        if place in places:
            raise click.UsageError(f"{place} is given twice; one relay for each database is expected")
        places[place] = dsn
    named = {connections.name(dsn): dsn for dsn in dsns}
    # Databases of one name on several servers are told apart by these.
    return named if len(named) == len(places) else places


def _read(config: Path, *, required: bool) -> dict[str, str]:
    try:
        found = tomllib.loads(config.read_text(encoding="utf-8")).get(DATABASES)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise click.UsageError(f"--config {config} cannot be read: {error}") from None
    if found is None and not required:
        return {}
    if not isinstance(found, dict) or not found or not all(isinstance(dsn, str) for dsn in found.values()):
        raise click.UsageError(
            f"--config {config} has no table [databases] of names and connection strings; expected lines such as: "
            'shop = "postgresql://outbox@db1/shop"'
        )
    for dsn in found.values():
        connections.parameters(dsn)
    return found
