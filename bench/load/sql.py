"""The library's own statements for drivers that are not the library: pgbench and JDBC."""

from __future__ import annotations

import re
from collections.abc import Mapping

_COLUMNS = re.compile(r"INSERT INTO outbox\.message \(([^)]*)\)")
_PLACE = re.compile(r"\$(\d+)")
_FIRST_PARTITION = "id >= 1 AND id < 5000001"
"""The range of a decision (outbox/operations/ranges.py), where the ids are known at run time only.

A benchmark's database is new, and takes far fewer ids than its first partition holds."""


def inserting(statement: str, values: Mapping[str, str]) -> str:
    """Put values (SQL text) in place of a plain INSERT's parameters, by column; the other columns get NULL.

    Raises:
        ValueError: the statement is no INSERT into `outbox.message`, or has no such column.
    """
    found = _COLUMNS.search(statement)
    if found is None:
        raise ValueError(f"no INSERT of a message: {statement}")
    columns = [column.strip() for column in found[1].split(",")]
    if missing := values.keys() - set(columns):
        raise ValueError(f"the statement lists no {', '.join(sorted(missing))}: {statement}")
    return _PLACE.sub(lambda place: values.get(columns[int(place[1]) - 1], "NULL"), statement)


def filling(statement: str, values: Mapping[int, str]) -> str:
    """Put values (SQL text) in place of numbered parameters, each of which must have one, and ids for `{range}`.

    Raises:
        KeyError: naming the parameter that has none.
    """
    ranged = statement.replace("{range}", _FIRST_PARTITION)
    return _PLACE.sub(lambda place: values[int(place[1])], ranged)
