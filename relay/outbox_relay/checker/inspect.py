"""Whether each registered group could be asked from here: what `outbox checker check` reports, without asking."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from outbox.statements import Statements
from outbox_relay.checker.askers.registered import Askers, Registration

STATEMENTS = Statements("outbox_relay/checker/registered.sql")
LOOKUP_S = 3.0


class Finding(NamedTuple):
    """One group: how it is asked, where, and why it cannot be (None: it can)."""

    group: str
    kind: str
    place: str
    problem: str | None


def inspect(conn: psycopg.Connection[Any], askers: Askers, groups: Sequence[str] = ()) -> list[Finding]:
    """Inspect every group with a callback, or at those named; a name that has none is a problem too."""
    rows = conn.execute(STATEMENTS["with_callback"]).fetchall()
    found = [
        _finding(name, Registration.read(callback, workers), askers)
        for name, callback, workers in rows
        if not groups or name in groups
    ]
    unknown = [name for name in groups if name not in {finding.group for finding in found}]
    return found + [
        Finding(name, "in process", "", "has no callback: its application asks itself") for name in unknown
    ]


def _finding(group: str, registration: Registration, askers: Askers) -> Finding:
    asker = askers.make(group, registration)
    assert asker is not None  # noqa: S101  (only groups with a callback are read)
    try:
        return Finding(group, registration.kind, asker.place, asker.problem(time.monotonic() + LOOKUP_S))
    finally:
        asker.close()
