"""Revocations: certificates that are written to take back all that came before, when the warehouse is not what it was.

A warehouse that was lost, replaced by another at the same place, or brought back from a backup does not hold what was
certified, and `outbox history drop` would go on dropping by it. So the first to notice, an export or a verification,
writes a certificate with a problem over all transactions, before it does anything else; if it dies before, the next run
notices the same. From then on everything has to be verified again, and what cannot be any more is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from outbox_etl.reconcile import certificate as certificates
from outbox_etl.reconcile.certificate import Certificate

if TYPE_CHECKING:
    from outbox_etl.source.reader import Source
    from outbox_etl.source.window import Cluster, Watermark

ABOVE_ALL_XIDS = (1 << 63) - 1
"""The end of its window: above every xid that fits into a bigint."""


def doubt(found: Iterable[Certificate], warehouse: str, mark: Watermark | None) -> str:
    """Return why certificates that still count cannot be true of the warehouse; empty: they can.

    Args:
        found: all certificates of the target.
        warehouse: the identity of what is there now; empty: nothing is.
        mark: its watermark.
    """
    good = certificates.in_force(found)
    if not good:
        return ""
    if mark is None:
        return "the warehouse is empty or gone"
    if any(each.warehouse != warehouse for each in good):
        return "it is another warehouse than the one that was verified"
    proven = max(each.hi for each in good)
    if mark.hi < proven:
        return f"the warehouse is filled to transaction {mark.hi} and was verified to {proven}: it is an older state"
    return ""


def revoke(
    source: Source,
    target: str,
    cluster: Cluster,
    say: Callable[[str], None],
    *,
    warehouse: str,
    mark: Watermark | None,
    because: str = "",
) -> str:
    """Take back the certificates of the target if they cannot be true any more; answer why, or nothing.

    They are taken back for `because`, if that is given, whatever they contain and whatever they belong to.

    Raises:
        OtherClusterError: PostgreSQL is another one than `cluster` by now.
    """
    found = certificates.read(source, target)
    here = certificates.present(found, cluster)
    # (xids of two clusters have no order: those of others count for nothing once one of this cluster is there)
    good = certificates.in_force(here) if here else [each for each in found if not each.problems]
    reason = doubt(here, warehouse, mark) or (because if good else "")
    if reason:
        taken = Certificate(0, ABOVE_ALL_XIDS, 0, 1, warehouse=warehouse, revoked=reason)
        certificates.write(source, target, cluster, taken)
        say(
            f"the certificates of {target} are taken back: {reason}. Nothing more is dropped by them; "
            "`outbox etl reconcile` verifies everything again"
        )
    return reason


def latest(found: Iterable[Certificate]) -> str:
    """Return why certificates were taken back, if none was given since."""
    newest = max(found, key=lambda each: each.xid, default=None)
    return newest.revoked if newest else ""
