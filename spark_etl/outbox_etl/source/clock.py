"""Clocks: a commit that is ahead of its time stops all runs until then, so a run whose clock is ahead makes none."""

from __future__ import annotations

from datetime import UTC, datetime

from outbox_etl.errors import SourceError, TargetError

AHEAD_S = 30.0
"""Seconds that this machine may be ahead of PostgreSQL. Iceberg refuses a commit a minute older than the last."""
BEHIND_S = 60.0
"""Seconds that a table's last commit may be ahead of this machine."""


def refuse_ahead(machine: float, server: float) -> None:
    """Refuse to run on a machine whose clock is ahead of PostgreSQL's; both in seconds since 1970.

    Raises:
        SourceError: it is; nothing was changed.
    """
    if machine - server > AHEAD_S:
        raise SourceError(
            f"this machine's clock is {machine - server:.0f} s ahead of PostgreSQL's: {_told(machine)}, "
            f"PostgreSQL's {_told(server)}. Iceberg would refuse all commits until then. Nothing was changed: set the "
            "clock that is wrong, and run again"
        )


def refuse_behind(table: str, last: float, machine: float) -> None:
    """Refuse to write a table whose last commit is ahead of this machine's clock.

    Raises:
        TargetError: it is; nothing was changed.
    """
    if last - machine > BEHIND_S:
        raise TargetError(
            f"the last commit of {table} is of {_told(last)}, and this machine's clock shows {_told(machine)}. Nothing "
            "was changed: set this clock if it is wrong; if the clock of that run was, runs go on at that time"
        )


def _told(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
