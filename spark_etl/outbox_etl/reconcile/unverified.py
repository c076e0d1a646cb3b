"""Unverified history: PostgreSQL dropped it before it was verified in this warehouse, so it never can be verified.

`outbox history drop --target A` asks only A's certificates. What B had exported by then and not verified yet has lost
its counterpart: no certificate of B speaks for it. What one did speak for, however long ago, was compared while it was
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from outbox_etl.reconcile.certificate import Certificate
    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.local import LocalRows
    from outbox_etl.reconcile.sources import SourceRows
    from outbox_etl.source.reader import Ids
    from outbox_etl.source.window import Window

NOTE = "never_verified_and_accepted"
DETAIL = "PostgreSQL dropped it before it was verified here; --accept-dropped lets it pass"


def find_unverified(
    stored: SourceRows,
    window: Window,
    held: Sequence[Ids],
    proven: Iterable[Certificate],
    found: Findings,
    *,
    accept: bool,
    local: LocalRows | None = None,
) -> None:
    """Ask `found` for the rows of the warehouse that were never verified and have no counterpart any more.

    `held` are the ids that PostgreSQL has, `proven` all certificates of this warehouse without problems, also those
    that were taken back since. If they are accepted, they are listed as notes, not as problems.
    """
    xids = _any("xid", ((each.lo, each.hi) for each in proven))
    inside = f"xid >= {window.lo} AND xid < {window.hi} AND NOT ({xids})"
    ids = [(each.lower, each.upper) for each in held]
    # (what a fail-over lost was never to be verified: it is told as lost)
    of_messages = f"{inside} AND status <> 'LOST' AND NOT ({_any('id', ids)})"
    of_publications = f"{inside} AND NOT ({_any('position', ids)})"
    if local and local.is_verified(of_messages, of_publications):
        return
    messages = stored.messages.where(of_messages)
    publications = stored.publications.where(of_publications).withColumns(
        {"message_id": f.lit(None).cast("string"), "topic": f.lit(None).cast("string")}
    )
    for rows in (messages, publications):
        if accept:
            found.note(NOTE, rows)
        else:
            found.collect(
                rows.withColumns(
                    {"kind": f.lit("unverified"), "store": f.lit("warehouse"), "detail": f.lit(DETAIL)}
                )
            )


def _any(column: str, spans: Iterable[tuple[int, int]]) -> str:
    """A condition: the column's value lies in one of these spans, which are joined where they touch."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return " OR ".join(f"({column} >= {low} AND {column} < {high})" for low, high in joined) or "false"
