"""The partition guard: a window is read whole, or not at all, while history is dropped at the same time.

What is detached cannot be seen through its table. A run that passes it by would move the watermark beyond its
transactions, and a verification would certify it unseen; attached again, it would never be read any more, and dropped.
So both check before they read, and again before they write what they claim. A partition that was detached and
attached in between has a new row in the catalogue, so that is noticed too. One that is made meanwhile holds later
windows' rows only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_etl.errors import SourceError

if TYPE_CHECKING:
    from outbox_etl.source.reader import Source

Attachments = frozenset[tuple[str, str]]
"""The tables of all partitions, each with the transaction that attached it."""


def check_attached(source: Source) -> Attachments:
    """Check that every partition is attached.

    Raises:
        SourceError: one is not, or is leaving; with what to do about it.
    """
    rows = source.ask("attachments")
    for row in rows:
        if row["state"] == "attached":
            continue
        how = "is being detached" if row["state"] == "pending" else "is detached"
        if row["dropping"]:
            advice = "an `outbox history drop` is running or was interrupted: let it end, or run it again"
        else:
            advice = (
                "attach it again, with the tables of the same number; if it shall never be exported, rename it "
                "or move it to another schema"
            )
        raise SourceError(
            f"outbox.{row['name']} {how}, so its rows would be left out: {advice}. Then run this again"
        )
    return frozenset((row["name"], row["since"]) for row in rows)


def check_still_attached(source: Source, before: Attachments) -> None:
    """Check that every partition of `before` is still attached, and was not detached in between.

    Raises:
        SourceError: one is not, or was.
    """
    if moved := sorted(name for name, _ in before - check_attached(source)):
        raise SourceError(
            f"history was dropped from PostgreSQL meanwhile, or detached for a time: outbox.{moved[0]}. Run again"
        )
