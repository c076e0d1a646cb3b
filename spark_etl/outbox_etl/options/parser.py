"""Reading of the command line: nearest names for what is unknown, no value repeated that may be a secret."""

from __future__ import annotations

import argparse
import difflib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from outbox_etl.errors import EtlError, SettingsError
from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import CATALOGS, FORMATS, SCHEME, Settings

SECRETIVE = ("password", "secret", "credential", "token", "key")
"""A setting whose name holds one of these has a value that is shown nowhere."""
SIZE = re.compile(r"(?i)^\d+[kmgt]?b?$")


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest name, takes no abbreviation, and repeats no value of an unknown option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and what is allowed; exit with 2."""
        _, found, unknown = message.partition("unrecognized arguments: ")
        if found:
            message = " ".join(self._hint(word.partition("=")[0]) for word in unknown.split(" ")[:1])
        super().error(message)

    def _hint(self, name: str) -> str:
        if not name.startswith("-"):
            return f"an argument too many; `{self.prog} COMMAND --help` names the options"
        near = difflib.get_close_matches(name, sorted(set(self._options())), n=1)
        hint = f"did you mean {near[0]}?" if near else f"`{self.prog} COMMAND --help` names them"
        return f"no such option: {name}; {hint}"

    def _options(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            for command in action.choices.values() if isinstance(action.choices, dict) else ():
                yield from command._options()


def check_settings(settings: Settings) -> None:
    """Refuse what an environment twin brought unchecked, and files that are not jars, before Java starts.

    Raises:
        SettingsError: naming the option and what is allowed.
    """
    for option, value, allowed in (
        ("--format", settings.format, FORMATS),
        ("--catalog", settings.catalog, CATALOGS),
    ):
        if value not in allowed:
            twin = f"OUTBOX_ETL_{option.removeprefix('--').upper()}"
            raise SettingsError(f"{option} ({twin}) is {value!r}: allowed are {', '.join(allowed)}")
    local = settings.local_warehouse
    if local is not None and (settings.format == "parquet" or settings.catalog == "hadoop"):
        there = next(place for place in (local, *local.parents) if place.exists())
        if not there.is_dir():
            raise SettingsError(
                f"--warehouse {local}: {there} is a file, expected a directory. Give another --warehouse"
            )
    for name, value in settings.spark.items():
        if name.lower().endswith(("memory", "memoryoverhead")) and not SIZE.match(value):
            raise SettingsError(f"--spark {name}={value} is not a size: expected for example 2g or 1500m")
    for jar in settings.jars:
        if not SCHEME.match(jar):
            _check_jar(Path(jar))


def _check_jar(jar: Path) -> None:
    try:
        if zipfile.is_zipfile(jar):
            with jar.open("rb") as file:
                file.read(1)
            return
        problem = "is not a jar"
        with jar.open("rb"):
            pass
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise SettingsError(
        f"--jars names {jar}, which {problem}; without --jars, `outbox etl` fetches the right ones"
    )


def secrets(given: argparse.Namespace) -> set[str]:
    """Return the passwords that the options hold, to be removed from the output of Java."""
    found = set()
    for dsn in (given.dsn, given.catalog_uri):
        try:
            found.add(parse(dsn).password if dsn else "")
        except EtlError:
            continue  # (no DSN; what is wrong with it is reported elsewhere)
    pairs = [
        text.partition("=") for text in (*given.catalog_option, *(getattr(given, "kafka_config", None) or ()))
    ]
    found |= {value for name, _, value in pairs if any(word in name.lower() for word in SECRETIVE)}
    return found - {""}
