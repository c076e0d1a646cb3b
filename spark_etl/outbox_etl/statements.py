"""Named SQL statements of this package, kept in sql/*.sql where they can be read and explained.

A file holds blocks `-- name: x`, an explanation in comment lines, and one statement. Spark reads a table by a
statement's text, so values stand in it as `{name}`: only integers, names that this package knows and the quoted
paths of files (outbox_etl.warehouse.duck) are put there.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

_NAME = re.compile(r"^-- name: *(\S+) *$", re.MULTILINE)


@functools.cache
def statements(file: str) -> dict[str, str]:
    """The statements of sql/<file>, by name, without their explanations."""
    text = resources.files("outbox_etl").joinpath("sql", file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: _bare(block) for name, block in zip(parts[::2], parts[1::2], strict=True)}


def statement(file: str, name: str, **values: int | str) -> str:
    """One statement with its values in place."""
    text = statements(file)[name]
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", str(value))
    return text


def _bare(block: str) -> str:
    lines = [line for line in block.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
