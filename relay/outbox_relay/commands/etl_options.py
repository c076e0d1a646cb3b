"""The options of `outbox etl`, and what they are to the job: its own arguments, by the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SECRETIVE = ("password", "secret", "credential", "token", "key")
"""A setting whose name holds one of these has a value that is shown nowhere."""


def _need_warehouse(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value and not ctx.resilient_parsing:
        raise click.UsageError(
            "no warehouse given: use --warehouse (a path will do), or set OUTBOX_WAREHOUSE", ctx
        )
    return value


def _pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if any(not text.partition("=")[0].strip() or "=" not in text for text in value):
        # Not repeated in the error: the text may be half of a password.
        raise click.BadParameter("give NAME=VALUE", ctx, param)
    return value


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    """An option whose twin in the environment is that of the job itself."""
    twin = settings.pop("envvar", f"OUTBOX_ETL_{name.removeprefix('--').replace('-', '_').upper()}")
    return click.option(name, envvar=twin, show_envvar=True, **settings)


OPTIONS = (
    _option(
        "--warehouse",
        envvar="OUTBOX_WAREHOUSE",
        metavar="PLACE",
        default="",
        callback=_need_warehouse,
        help="A path, a URI (hdfs://…, s3a://…), or the name of a warehouse in a REST catalog.",
    ),
    _option(
        "--format",
        type=click.Choice(["iceberg", "parquet"]),
        default="iceberg",
        show_default=True,
        help="What the tables are.",
    ),
    _option(
        "--catalog",
        type=click.Choice(["hadoop", "jdbc", "rest"]),
        default="hadoop",
        show_default=True,
        help="Who keeps Iceberg's tables: the path itself, a database, a REST service.",
    ),
    _option(
        "--catalog-uri",
        metavar="URI",
        default="",
        help="jdbc: a DSN [default: --dsn]; rest: the service's URL.",
    ),
    _option(
        "--catalog-option",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="A further property of the catalog, such as credential=…; repeatable.",
    ),
    _option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="Spark's master: local[4], spark://…, yarn, k8s://….",
    ),
    _option(
        "--jars",
        metavar="PATH,…",
        default="",
        help="Iceberg's and PostgreSQL's jars. [default: fetched once and checked]",
    ),
    _option(
        "--driver-memory",
        metavar="SIZE",
        default="2g",
        show_default=True,
        help="Heap of the driver, which does all the work under local[*].",
    ),
    _option(
        "--partitions",
        type=click.IntRange(0, 10_000),
        default=0,
        help="Parallel reads of PostgreSQL. [default: 4 per core]",
    ),
    _option(
        "--fetch-size",
        type=click.IntRange(1, 1_000_000),
        default=5_000,
        show_default=True,
        help="Rows that PostgreSQL sends at a time.",
    ),
    _option(
        "--slice-rows",
        type=click.IntRange(1_000, 10**12),
        default=2_000_000,
        show_default=True,
        help="Ids that one commit of message_history covers at most.",
    ),
    _option(
        "--report",
        metavar="FILE.html",
        default="",
        help="Write a report for people there, with pictures, also when the job fails.",
    ),
    _option(
        "--spark",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="A further setting of Spark, repeatable. No secrets: Java's command line shows them.",
    ),
)


def job_options(command: F) -> F:
    """Add the options that every command of the job has."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def arguments(given: Mapping[str, Any]) -> list[str]:
    """Write options as the job's arguments: `--name=value`, so that a value may begin with a dash."""
    found = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found += [option] if value else []
        elif isinstance(value, (tuple, list)):
            found += [f"{option}={each}" for each in value]
        elif isinstance(value, Mapping):
            found += [f"{option}={key}={each}" for key, each in value.items()]
        elif value not in ("", None):
            found.append(f"{option}={value}")
    return found


def secrets(given: Mapping[str, Any]) -> set[str]:
    """The passwords in the options, to be removed from whatever the job or Java says."""
    from outbox_etl.dsn import parse  # noqa: PLC0415  (--help needs none of it)
    from outbox_etl.errors import EtlError as Unreadable  # noqa: PLC0415

    found = set()
    for dsn in (given.get("dsn", ""), given.get("catalog_uri", "")):
        try:
            found.add(parse(dsn).password if dsn else "")
        except Unreadable:
            continue  # the job says what is wrong with it
    settings = [text.partition("=") for text in given.get("catalog_option", ())]
    pairs = [(name, value) for name, _, value in settings] + list(given.get("kafka_config", {}).items())
    found |= {value for name, value in pairs if any(word in name.lower() for word in SECRETIVE)}
    return found - {""}
