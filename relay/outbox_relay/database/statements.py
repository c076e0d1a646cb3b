"""Named SQL statements, kept in .sql files where they can be read, explained and tried in psql.

A file holds blocks of this form; every name is unique in its file and every statement says what it is for:

    -- name: backlog
    -- What is committed and not yet published, per lane.
    SELECT …
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources

_NAME = re.compile(r"^-- name: *(?P<name>\S+) *$", re.MULTILINE)


class Statements(Mapping[str, str]):
    """The statements of one packaged file, by name.

    Values are bound by the driver (`%(name)s`); a statement is never put together from values.

    Raises:
        ValueError: a block without an explanation or without SQL, or a name that is used twice.
    """

    def __init__(self, path: str, *, package: str = "outbox_relay") -> None:
        self.path = path
        text = resources.files(package).joinpath(path).read_text(encoding="utf-8")
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
