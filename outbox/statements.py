"""SQL statements by name, and the one form in which the core hands them to a driver.

Statements live in `outbox/sql/*.sql` with their explanations. They use PostgreSQL's own placeholders ($1), so a
driver passes them on as they are, and each has one fixed text: a prepared plan is found again by it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class ByteaArray(NamedTuple):
    """A parameter that a driver binds as bytea[]; None inside is NULL."""

    items: Sequence[bytes | None]


class TextArray(NamedTuple):
    """A parameter that a driver binds as text[], in the connection's encoding; None inside is NULL."""

    items: Sequence[str | None]


Param: TypeAlias = str | bytes | ByteaArray | TextArray | None
"""str is bound as untyped text (the server infers the type), bytes as binary bytea."""


class Statement(NamedTuple):
    """A statement to run on the caller's connection, prepared if the connection allows it."""

    text: str
    params: Sequence[Param] = ()
    answers: bool = True
    """Whether it has a result set, as SAVEPOINT has not."""


Rows: TypeAlias = list[tuple[Any, ...]]
Plan: TypeAlias = Generator[Statement, Rows, T]
"""Logic without I/O: yields statements, is sent their rows, returns the result. Drivers run it (see drivers)."""

_NAMED = re.compile(r"^-- name: (\w+)[^\n]*\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def load(file: str) -> Mapping[str, str]:
    """Read the named statements of one file of `outbox/sql`, comments and trailing semicolons removed."""
    text = resources.files("outbox").joinpath("sql", file).read_text(encoding="utf-8")
    return {name: _bare(body) for name, body in _NAMED.findall(text)}


def _bare(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).rstrip().removesuffix(";")
