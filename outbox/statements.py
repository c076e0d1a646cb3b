"""SQL statements by name, kept in .sql files, and the one form in which the core hands them to a driver.

A file holds blocks of this form. Every name is unique in its file, and every statement has an explanation:

    -- name: backlog
    -- What is committed and not yet published, per lane.
    SELECT …

The library's own statements live in `outbox/sql/*.sql`. They use PostgreSQL's own placeholders ($1), so a driver passes
them on as they are. A prepared plan is found again by its text, so each has one fixed text. Those that name a range of
ids (outbox/operations/ranges.py) have one for each range.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
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


def array_text(values: Iterable[object]) -> str:
    """Write numbers, dates or UUIDs as PostgreSQL's text of an array: it is bound several times faster than a list."""
    return f"{{{','.join(map(str, values))}}}"


Rows: TypeAlias = list[tuple[Any, ...]]
Plan: TypeAlias = Generator[Statement, Rows, T]
"""Logic without I/O: yields statements, is sent their rows, returns the result. Drivers run it (see drivers)."""

_NAME = re.compile(r"^-- name: *(?P<name>\S+) *$", re.MULTILINE)


class Statements(Mapping[str, str]):
    """The statements of one packaged file, by name.

    Values are bound by the driver; a statement is never put together from values.

    Args:
        path: The package and the file in it: "outbox_relay/operations/status.sql".

    Raises:
        ValueError: A block has no explanation or no SQL, or two blocks have the same name.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        package, _, file = path.partition("/")
        text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
        self._statements = dict(self._parse(text))

    def _parse(self, text: str) -> Iterator[tuple[str, str]]:
        marks = list(_NAME.finditer(text))
        seen: set[str] = set()
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            name = mark["name"]
            block = text[mark.end() : following.start() if following else None].strip()
            explanation, statement = _split(block)
            if name in seen:
                raise ValueError(f"{self.path}: statement {name!r} is defined twice")
            if not explanation or not statement:
                raise ValueError(f"{self.path}: statement {name!r} needs an explanation and SQL below it")
            seen.add(name)
            yield name, statement

    def __getitem__(self, name: str) -> str:
        try:
            return self._statements[name]
        except KeyError:
            raise KeyError(f"{self.path} has no statement {name!r}; it has {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


def _split(block: str) -> tuple[str, str]:
    """Part the comment lines at the head of a block from the statement, which loses its last semicolon."""
    lines = block.splitlines()
    head = 0
    while head < len(lines) and lines[head].startswith("--"):
        head += 1
    explanation = " ".join(line.removeprefix("--").strip() for line in lines[:head])
    return explanation.strip(), "\n".join(lines[head:]).strip().removesuffix(";").rstrip()


def load(file: str) -> Mapping[str, str]:
    """Read the statements of one file of `outbox/sql`, without comments and blank lines: applications send them."""
    return {name: _bare(text) for name, text in Statements(f"outbox/sql/{file}").items()}


def _bare(text: str) -> str:
    return "\n".join(
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")
    )
