"""Options from a TOML file, which `OUTBOX_CONFIG` or `outbox --config FILE` names.

Keys at the top are for every command that has the option; a table is for the command of its name, `[relay.run]`. The
command line comes before the environment, the environment before the file, the file before the default of an option.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import click

SHARED = ("dsn", "bootstrap-servers", "kafka-config", "log-format", "log-level")
"""What may stand at the top of the file."""
DATABASES = "databases"
"""The table of connection strings by name, which `outbox relay run` reads by itself."""
_KEPT = "outbox_relay.configuration"


class SettingsFile:
    """A file that was read; commands are checked when they run, so that a file may serve several versions."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            UsageError: It is not readable, no TOML, or has a key at its top that no command takes.
        """
        self.path = path
        try:
            self._found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise click.UsageError(f"the configuration file {path} cannot be read: {error}") from None
        for name, value in self._found.items():
            if name not in SHARED and not isinstance(value, dict):
                raise click.UsageError(
                    f"{path}: {name!r} is not a setting of all commands{_nearest(name, SHARED)}; "
                    "options of one command belong into its table, such as [relay.run]"
                )

    def tables(
        self, group: click.Group
    ) -> Iterator[tuple[tuple[str, ...], click.Command, Mapping[str, Any]]]:
        """Yield each command that has a table, with its path and the table.

        Raises:
            UsageError: A table is named like no command.
        """
        for name, table in self._found.items():
            if name not in SHARED and name != DATABASES:
                yield from self._below(group, (name,), table)

    def _below(
        self, group: click.Group, path: tuple[str, ...], table: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[str, ...], click.Command, Mapping[str, Any]]]:
        context = click.Context(group)
        command = group.get_command(context, path[-1])
        if command is None:
            near = _nearest(path[-1], group.list_commands(context))
            raise click.UsageError(f"{self.path}: [{'.'.join(path)}] is not a command{near}")
        if not isinstance(command, click.Group):
            yield path, command, table
            return
        for name, inner in table.items():
            if not isinstance(inner, dict):
                raise click.UsageError(
                    f"{self.path}: [{'.'.join(path)}] has the key {name!r}, and `outbox {' '.join(path)}` takes no "
                    "options; expected a table for one of its commands"
                )
            yield from self._below(command, (*path, name), inner)

    def options(self, command: click.Command, path: tuple[str, ...]) -> dict[str, Any]:
        """Return what the file gives to a command, by the names of its parameters.

        Raises:
            UsageError: The command's table has a key that is not one of its options.
        """
        known = {option.removeprefix("--"): param for param in command.params for option in param.opts}
        found = {name: value for name, value in self._found.items() if name in SHARED and name in known}
        table = self._table(path)
        for name, value in table.items():
            if name not in known:
                raise click.UsageError(
                    f"{self.path}: [{'.'.join(path)}] has the key {name!r}, which is not an option of "
                    f"`outbox {' '.join(path)}`{_nearest(name, known)}"
                )
            found[name] = value
        return {str(known[name].name): _given(value, known[name]) for name, value in found.items()}

    def _table(self, path: tuple[str, ...]) -> Mapping[str, Any]:
        table: Any = self._found
        for name in path:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        return table if isinstance(table, dict) else {}


def use(ctx: click.Context, path: Path) -> None:
    """Let the commands below a context take options from a file."""
    ctx.meta[_KEPT] = SettingsFile(path)


def used(ctx: click.Context) -> SettingsFile | None:
    """Return the file that a context takes options from."""
    found: SettingsFile | None = ctx.meta.get(_KEPT)
    return found


def apply(ctx: click.Context) -> None:
    """Give a command what the file has for it, before its options are read."""
    file = used(ctx)
    if file is not None:
        ctx.default_map = file.options(ctx.command, path_of(ctx))


def path_of(ctx: click.Context) -> tuple[str, ...]:
    """Return the words that call a command, without `outbox`."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return tuple(names)


def _given(value: Any, param: click.Parameter) -> Any:
    """Return a value as the command line would give it."""
    if isinstance(value, dict):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if isinstance(value, list):
        return [_text(each) for each in value]
    if isinstance(value, bool) and getattr(param, "is_flag", False):
        return value
    text = _text(value)
    return [text] if getattr(param, "multiple", False) else text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
