"""An option of the job, defined once: the job's own parser and `outbox etl` both make theirs from it.

Every option that is not a flag can have a twin in the environment. The twin of an option that may be repeated is split
at spaces, and the arguments are added to it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outbox_etl.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    """With its dashes: `--slice-rows`."""
    help: str
    """Sentences, without the default and the twin."""
    twin: str = ""
    """Its variable in the environment; empty: none."""
    metavar: str = ""
    default: str | int = ""
    default_text: str = ""
    """What the help states in place of the default."""
    choices: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None
    """The least and the most; with limits, the option is a whole number."""
    repeated: bool = False
    """May be given several times."""
    flag: bool = False

    def check(self, given: argparse.Namespace, why: str = "") -> None:
        """Check that the number lies within the limits.

        Raises:
            SettingsError: naming the option and what is allowed; `why` is added to it.
        """
        value = getattr(given, self.name.removeprefix("--").replace("-", "_"))
        if self.limits and not self.limits[0] <= value <= self.limits[1]:
            least, most = self.limits
            raise SettingsError(f"{self.name} {value} is out of range: {least} to {most}{why}")


def twin_of(name: str) -> str:
    """Return the variable of an option that only the job has."""
    return f"OUTBOX_ETL_{name.removeprefix('--').replace('-', '_').upper()}"


def add(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to a parser."""
    for option in options:
        settings: dict[str, Any] = {"help": described(option).replace("%", "%%")}
        given = os.environ.get(option.twin, str(option.default)) if option.twin else str(option.default)
        if option.flag:
            settings |= {"action": "store_true"}
        elif option.repeated:
            settings |= {"action": "append", "default": given.split()}
        else:
            settings |= {"default": given}
        if option.limits:
            settings |= {"type": int}
        if option.choices:
            settings |= {"choices": option.choices}
        elif option.metavar:
            settings |= {"metavar": option.metavar}
        parser.add_argument(option.name, **settings)


def described(option: Option) -> str:
    """Return the help of an option: its sentences, its twin, its default, its limits."""
    default = option.default_text or str(option.default)
    extras = [f"env var: {option.twin}"] if option.twin else []
    extras += [f"default: {default}"] if default and not option.flag else []
    extras += ["{}<=x<={}".format(*option.limits)] if option.limits else []
    return f"{option.help}  [{'; '.join(extras)}]" if extras else option.help
