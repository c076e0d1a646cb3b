"""The options of a run: where the history is, where it goes, and what Spark may use; checked before Spark starts.

Every option has an environment twin, so that a schedule names secrets nowhere: OUTBOX_DSN, OUTBOX_WAREHOUSE and
OUTBOX_ETL_<OPTION>. What may be repeated is split at spaces there, and joined by what is given as arguments, which win.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath
from urllib.parse import urlsplit

from outbox_etl.errors import SettingsError
from outbox_etl.options.dsn import Database, parse
from outbox_etl.options.option import Option, twin_of

FORMATS = ("iceberg", "parquet")
"""The first is what is taken when none is named; so with catalogs."""
CATALOGS = ("hadoop", "jdbc", "rest")
DRIVER_MEMORY = "2g"
FETCH_SIZE = 5_000
SLICE_ROWS = 10_000_000
MEMORY = re.compile(r"^[1-9]\d*[mg]$")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's options. `str()` of it holds no secret."""

    source: Database
    warehouse: str
    format: str = FORMATS[0]
    catalog: str = CATALOGS[0]
    catalog_uri: str = ""
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further properties of the catalog (`credential`, `io-impl`, …); they may hold secrets."""
    master: str = ""
    """Empty: that of spark-submit, else `local[*]`."""
    jars: tuple[str, ...] = ()
    driver_memory: str = DRIVER_MEMORY
    partitions: int = 0
    """Parallel reads at least, and files of a slice; 0: two per core of the cluster."""
    fetch_size: int = FETCH_SIZE
    """Rows that PostgreSQL sends at a time."""
    slice_rows: int = SLICE_ROWS
    """Ids that one commit of message_history covers at most: a run that dies loses one slice's work."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings of Spark."""

    @property
    def local_warehouse(self) -> Path | None:
        """The warehouse as a path of this machine, if it is one; a REST catalog's warehouse is a name."""
        if self.catalog == "rest":
            return None
        if self.warehouse.startswith("file:"):
            return Path("/" + self.warehouse.removeprefix("file:").lstrip("/"))
        return None if SCHEME.match(self.warehouse) else Path(self.warehouse).absolute()

    @property
    def location(self) -> str:
        """The warehouse's place as Spark reads it."""
        local = self.local_warehouse
        return self.warehouse if local is None else local.as_uri()

    @property
    def target(self) -> str:
        """The warehouse's name, as certificates carry it: the same for every run that writes the same tables.

        Two ways to write a place are one name. Where a catalog keeps the tables, it is named too; logins are left out.
        """
        if self.catalog == "rest":
            return f"{self.warehouse} (rest {_plain(self.catalog_uri)})"
        local = self.local_warehouse
        place = _plain(self.warehouse) if local is None else str(local.resolve())
        if self.catalog == "jdbc":
            return f"{place} (jdbc {parse(self.catalog_uri) if self.catalog_uri else self.source})"
        return place if self.format == "iceberg" else f"{place} (parquet)"


COMMON_OPTIONS = (
    Option(
        "--dsn",
        "PostgreSQL: postgresql://user@host:5432/database, or 'host=… dbname=…'.",
        twin="OUTBOX_DSN",
        metavar="DSN",
    ),
    Option(
        "--warehouse",
        "A path, a URI (hdfs://…, s3a://…), or the name of a warehouse in a REST catalog.",
        twin="OUTBOX_WAREHOUSE",
        metavar="LOCATION",
    ),
    Option(
        "--format",
        "What the tables are.",
        twin=twin_of("--format"),
        choices=FORMATS,
        default=FORMATS[0],
    ),
    Option(
        "--catalog",
        "Who keeps Iceberg's tables: the path itself, a database, a REST service.",
        twin=twin_of("--catalog"),
        choices=CATALOGS,
        default=CATALOGS[0],
    ),
    Option(
        "--catalog-uri",
        "jdbc: a DSN (without one, that of --dsn); rest: the service's URL.",
        twin=twin_of("--catalog-uri"),
        metavar="URI",
    ),
    Option(
        "--catalog-option",
        "A further property of the catalog, such as credential=…; repeatable. Secrets belong into the environment.",
        twin=twin_of("--catalog-option"),
        metavar="NAME=VALUE",
        repeated=True,
    ),
    Option(
        "--master",
        "Spark's master: local[4], spark://…, yarn, k8s://….",
        twin=twin_of("--master"),
        metavar="URL",
        default_text="that of spark-submit, else local[*]",
    ),
    Option(
        "--jars",
        "Iceberg's and PostgreSQL's jars, separated by commas.",
        twin=twin_of("--jars"),
        metavar="PATH,…",
        default_text="those of spark-submit",
    ),
    Option(
        "--driver-memory",
        "Heap of the driver, which does all the work under local[*].",
        twin=twin_of("--driver-memory"),
        metavar="SIZE",
        default=DRIVER_MEMORY,
    ),
    Option(
        "--partitions",
        "Parallel reads of PostgreSQL.",
        twin=twin_of("--partitions"),
        metavar="NUMBER",
        default=0,
        default_text="2 per core",
        limits=(0, 10_000),
    ),
    Option(
        "--fetch-size",
        "Rows that PostgreSQL sends at a time where Spark reads them; new messages may come by COPY.",
        twin=twin_of("--fetch-size"),
        metavar="NUMBER",
        default=FETCH_SIZE,
        limits=(1, 1_000_000),
    ),
    Option(
        "--slice-rows",
        "Ids that one commit of message_history covers at most.",
        twin=twin_of("--slice-rows"),
        metavar="NUMBER",
        default=SLICE_ROWS,
        limits=(1_000, 10**8),
    ),
    Option(
        "--report",
        "Write a report for people to this file, with pictures, also when the job fails.",
        twin=twin_of("--report"),
        metavar="FILE.html",
    ),
    Option(
        "--spark",
        "A further setting of Spark, repeatable. No secrets: Java's command line shows them.",
        twin=twin_of("--spark"),
        metavar="NAME=VALUE",
        repeated=True,
    ),
)
"""The options that every command of the job has."""
REBASE = Option("--rebase", "Go on from another cluster, or after a fail-over.", flag=True)
"""The option that only backfill has."""


def from_arguments(given: argparse.Namespace) -> Settings:
    """Check what was given.

    Raises:
        SettingsError: naming the option and what is allowed.
    """
    if not given.dsn:
        raise SettingsError("no database given: use --dsn or set OUTBOX_DSN")
    if not given.warehouse:
        raise SettingsError("no warehouse given: use --warehouse (a path will do) or set OUTBOX_WAREHOUSE")
    if given.format == "parquet" and given.catalog != "hadoop":
        raise SettingsError("--format parquet keeps its own manifest: it takes no --catalog")
    if given.catalog == "rest" and not given.catalog_uri:
        raise SettingsError("--catalog rest needs --catalog-uri, the URL of the service")
    if not MEMORY.match(given.driver_memory):
        raise SettingsError(
            f"--driver-memory {given.driver_memory!r} is not a size: expected for example 2g or 1500m"
        )
    for option in COMMON_OPTIONS:
        option.check(given)
    return Settings(
        source=parse(given.dsn),
        warehouse=given.warehouse,
        format=given.format,
        catalog=given.catalog,
        catalog_uri=given.catalog_uri,
        catalog_options=_pairs("--catalog-option", given.catalog_option),
        master=given.master,
        jars=_jars(given.jars),
        driver_memory=given.driver_memory,
        partitions=given.partitions,
        fetch_size=given.fetch_size,
        slice_rows=given.slice_rows,
        spark=_pairs("--spark", given.spark),
    )


def _plain(uri: str) -> str:
    """A URI as its scheme, host and normal path: what else may be there is a login, or does not identify the place."""
    parts = urlsplit(uri)
    path = normpath(f"/{parts.path}").lstrip("/")
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme.lower()}://{host}/{path}".rstrip("/")


def _jars(given: str) -> tuple[str, ...]:
    jars = tuple(jar for jar in given.split(",") if jar)
    missing = [jar for jar in jars if not SCHEME.match(jar) and not Path(jar).is_file()]
    if missing:
        raise SettingsError(
            f"--jars names {', '.join(missing)}, which is not a file: give paths of jars, separated by commas"
        )
    return jars


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    for pair in given:
        if "=" not in pair:
            raise SettingsError(f"{option} is not a valid setting: expected NAME=VALUE")
    return dict(pair.split("=", 1) for pair in given)
