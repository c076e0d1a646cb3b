"""Ranges of ids as the catalogue holds them: three tables each, attached, being detached, or detached.

A removal marks the range's table of messages with a comment before it detaches anything. What is found detached and
marked is a removal that did not come to its end; what is detached without a mark was detached by hand, and is not
dropped.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements

STATEMENTS = Statements("outbox_relay/retention/ranges.sql")

KINDS = ("message", "publication", "event")
"""In the order in which they are detached. Messages first: a reader of a message must see its publication, or the
relay's sweep would take it for lost and publish it again."""

MARK = "outbox history drop: ids up to {upper}"
_MARK = re.compile(MARK.format(upper=r"(?P<upper>\d+)"))


@dataclass(frozen=True, slots=True)
class Range:
    """The ids from lower (inclusive) to upper (exclusive), and how each of its tables belongs to its parent.

    `states` has attached, pending (a detach that has begun) or detached by kind; a table that is not there has none.
    """

    suffix: str
    lower: int
    upper: int
    states: dict[str, str]
    size: int
    marked: bool

    @property
    def name(self) -> str:
        """The table of messages, by which the range is called."""
        return f"message_p{self.suffix}"

    @property
    def is_whole(self) -> bool:
        """Whether all three tables are there."""
        return len(self.states) == len(KINDS)

    @property
    def is_attached(self) -> bool:
        """Whether nothing of it has begun to leave."""
        return all(state == "attached" for state in self.states.values())

    @property
    def left_by_hand(self) -> bool:
        """Whether somebody detached its messages, and not a removal."""
        return self.states["message"] != "attached" and not self.marked

    def table(self, kind: str) -> sql.Identifier:
        """Name one of its tables in a statement."""
        return sql.Identifier("outbox", f"{kind}_p{self.suffix}")


def read(conn: psycopg.Connection[Any]) -> list[Range]:
    """Read all ranges, oldest first."""
    found: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(dict)
    for kind, suffix, *rest in conn.execute(STATEMENTS["tables"]).fetchall():
        found[suffix][kind] = tuple(rest)
    suffixes = [suffix for suffix, tables in found.items() if "message" in tables]
    nexts = [*map(int, suffixes[1:]), None]
    return [
        _range(suffix, found[suffix], following)
        for suffix, following in itertools.zip_longest(suffixes, nexts)
    ]


def _range(suffix: str, tables: dict[str, tuple[Any, ...]], following: int | None) -> Range:
    _, upper, comment, _ = tables["message"]
    mark = _MARK.fullmatch(comment or "")
    if upper is None:
        # Detached: the catalogue has forgotten the bounds.
        upper = int(mark["upper"]) if mark else following or int(suffix)
    return Range(
        suffix=suffix,
        lower=int(suffix),
        upper=upper,
        states={kind: table[0] for kind, table in tables.items()},
        size=sum(table[3] for table in tables.values()),
        marked=mark is not None,
    )


def state(conn: psycopg.Connection[Any], range_: Range, kind: str) -> str | None:
    """Read how one table belongs to its parent now; None: it is gone."""
    row = conn.execute(STATEMENTS["state"], {"table": f"outbox.{kind}_p{range_.suffix}"}).fetchone()
    return None if row is None else str(row[0])
