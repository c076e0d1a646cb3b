"""The options of `outbox etl`, and what they are to the job: its own arguments, by the same names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from outbox_etl import arguments as job
from outbox_etl.options import CATALOGS, DRIVER_MEMORY, FETCH_SIZE, FORMATS, LIMITS, SLICE_ROWS

F = TypeVar("F", bound=Callable[..., Any])


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


def etl_option(name: str, **settings: Any) -> Callable[[F], F]:
    """An option whose twin in the environment is that of the job itself."""
    twin = settings.pop("envvar", f"OUTBOX_ETL_{name.removeprefix('--').replace('-', '_').upper()}")
    return click.option(name, envvar=twin, show_envvar=True, **settings)


OPTIONS = (
    etl_option(
        "--warehouse",
        envvar="OUTBOX_WAREHOUSE",
        metavar="PLACE",
        default="",
        callback=_need_warehouse,
        help="A path, a URI (hdfs://…, s3a://…), or the name of a warehouse in a REST catalog.",
    ),
    etl_option(
        "--format",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        help="What the tables are.",
    ),
    etl_option(
        "--catalog",
        type=click.Choice(CATALOGS),
        default=CATALOGS[0],
        show_default=True,
        help="Who keeps Iceberg's tables: the path itself, a database, a REST service.",
    ),
    etl_option(
        "--catalog-uri",
        metavar="URI",
        default="",
        help="jdbc: a DSN [default: --dsn]; rest: the service's URL.",
    ),
    etl_option(
        "--catalog-option",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="A further property of the catalog, such as credential=…; repeatable.",
    ),
    etl_option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="Spark's master: local[4], spark://…, yarn, k8s://….",
    ),
    etl_option(
        "--jars",
        metavar="PATH,…",
        default="",
        help="Iceberg's and PostgreSQL's jars. [default: fetched once and checked]",
    ),
    etl_option(
        "--driver-memory",
        metavar="SIZE",
        default=DRIVER_MEMORY,
        show_default=True,
        help="Heap of the driver, which does all the work under local[*].",
    ),
    etl_option(
        "--partitions",
        type=click.IntRange(*LIMITS["partitions"]),
        default=0,
        help="Parallel reads of PostgreSQL. [default: 4 per core]",
    ),
    etl_option(
        "--fetch-size",
        type=click.IntRange(*LIMITS["fetch_size"]),
        default=FETCH_SIZE,
        show_default=True,
        help="Rows that PostgreSQL sends at a time.",
    ),
    etl_option(
        "--slice-rows",
        type=click.IntRange(*LIMITS["slice_rows"]),
        default=SLICE_ROWS,
        show_default=True,
        help="Ids that one commit of message_history covers at most.",
    ),
    etl_option(
        "--report",
        metavar="FILE.html",
        default="",
        help="Write a report for people there, with pictures, also when the job fails.",
    ),
    etl_option(
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
    kafka = [f"{name}={value}" for name, value in given.get("kafka_config", {}).items()]
    return job.secrets(Namespace(**{**given, "kafka_config": kafka}))
