"""Certificates: what was proven of a warehouse, window by window, written where retention asks for it.

A certificate is given to one warehouse, known by an identity of its own and not by its place: another warehouse at the
same place has none. It is of one database and one timeline of a cluster, those of the server that wrote it: when a
standby is promoted, xids may come to mean something else. `window_hi` is the watermark that the warehouse had. `held`
are the ids of the partitions that were read: one that was out of sight then is not vouched for. `checksum` is JSON:
order-free sums of what was compared, the offsets where the next verification goes on reading Kafka, how many messages
were doubled there and let pass, and the evidence, against which `outbox history drop` holds the warehouse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import OtherClusterError
from outbox_etl.source.reader import SQL as SOURCE_SQL
from outbox_etl.source.reader import Ids
from outbox_etl.source.window import Cluster
from outbox_etl.statements import statement
from outbox_etl.warehouse.evidence import Evidence

if TYPE_CHECKING:
    from outbox_etl.source.reader import Source

SQL = "reconcile.sql"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One verification of a window: `problems` = 0 is the proof."""

    lo: int
    hi: int
    messages: int
    problems: int
    sums: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per topic and partition (as text), the offset where the next verification goes on reading."""
    doubled: int = 0
    """Messages with more than one record in Kafka, which were let pass."""
    cluster: Cluster | None = None
    """Whose transactions they are, of one that was read."""
    xid: int = 0
    """The transaction that wrote it: on one timeline of a cluster, certificates are ordered by it, never by a clock."""
    verified_at: datetime = EPOCH
    """For people."""
    warehouse: str = ""
    """Which warehouse it is of; empty: there was none."""
    held: Sequence[Ids] = ()
    """The partitions that PostgreSQL had; not read back."""
    revoked: str = ""
    """Why all that was certified before counts no more, if it revokes them (see outbox_etl.reconcile.revocation)."""
    evidence: Evidence = field(default_factory=dict)
    """The state of the warehouse that was verified (see outbox_etl.warehouse.evidence)."""
    unverified: int = 0
    """Messages of the warehouse that PostgreSQL had dropped before they were verified there, and that were accepted."""

    gone: Mapping[str, int] = field(default_factory=dict)
    """Publications per topic that was deleted, which were accepted as gone from Kafka."""

    @property
    def checksum(self) -> str:
        """What is written."""
        said: dict[str, Any] = {"sums": dict(self.sums), "kafka": self.ends, "doubled": self.doubled}
        said |= {"revoked": self.revoked} if self.revoked else {}
        said |= {"evidence": dict(self.evidence)} if self.evidence else {}
        said |= {"unverified": self.unverified} if self.unverified else {}
        said |= {"gone": dict(self.gone)} if self.gone else {}
        return json.dumps(said, sort_keys=True, separators=(",", ":"))


def in_force(certificates: Iterable[Certificate]) -> list[Certificate]:
    """Return the certificates in force.

    A verification that found problems takes back what earlier ones proved of its window.

    Args:
        certificates: of one timeline of a cluster, in any order.
    """
    good: list[Certificate] = []
    for each in sorted(certificates, key=lambda each: each.xid):
        if each.problems:
            good = [other for other in good if other.hi <= each.lo or other.lo >= each.hi]
        else:
            good.append(each)
    return good


def covered(
    certificates: Iterable[Certificate], warehouse: str
) -> tuple[int, Mapping[str, Mapping[str, int]]]:
    """The xid up to which all is proven of this warehouse without a gap, and up to where Kafka was read for that."""
    reach, ends = 0, dict[str, Mapping[str, int]]()
    good = [each for each in in_force(certificates) if each.warehouse == warehouse]
    for each in sorted(good, key=lambda each: (each.lo, each.hi)):
        if each.lo <= reach < each.hi:
            reach = each.hi
            ends = {**ends, **each.ends}
    return reach, ends


def newest_evidence(certificates: Iterable[Certificate]) -> Evidence | None:
    """Return the evidence of the newest certificate in force; empty: it has none. None: there is no certificate.

    The verification that wrote it had first made sure that the evidence before was still there: it speaks for all.
    """
    good = in_force(certificates)
    return good[-1].evidence if good else None


def present(certificates: Iterable[Certificate], cluster: Cluster) -> list[Certificate]:
    """Leave those of this timeline and database, the only ones that count."""
    return [each for each in certificates if each.cluster == cluster]


def read(source: Source, target: str) -> list[Certificate]:
    """All certificates of a target."""
    return [_certificate(row) for row in source.bind(statement(SQL, "certificates"), target)]


def write(source: Source, target: str, cluster: Cluster, certificate: Certificate) -> None:
    """Write a certificate of what was read in this cluster: one INSERT of its own.

    Raises:
        OtherClusterError: the connection leads elsewhere now; nothing was written.
    """
    written = source.bind(
        statement(SQL, "certify", server=statement(SOURCE_SQL, "server")),
        target,
        certificate.warehouse,
        f"{{{','.join(f'[{ids.lower},{ids.upper})' for ids in certificate.held)}}}",
        str(certificate.lo),
        str(certificate.hi),
        certificate.messages,
        certificate.problems,
        certificate.checksum,
        cluster.system_identifier,
        cluster.timeline,
        cluster.database,
    )
    if not written:
        raise OtherClusterError(
            f"the server is no longer the one that was read, timeline {cluster.timeline} of {cluster}: a standby was "
            "promoted meanwhile, or the connection leads to another server. No certificate was written. Run "
            "`outbox etl reconcile` again: it names the next command"
        )


def _certificate(row: dict[str, Any]) -> Certificate:
    try:
        stored = json.loads(row["checksum"])
        sums, ends, doubled = stored["sums"], stored["kafka"], int(stored.get("doubled", 0))
        revoked, evidence = str(stored.get("revoked", "")), dict(stored.get("evidence", {}))
        gone = dict(stored.get("gone", {}))
    except (ValueError, KeyError, TypeError):
        # Of something else: Kafka is read from its beginning.
        sums, ends, doubled, revoked, evidence, gone = {}, {}, 0, "", {}, {}
    return Certificate(
        lo=row["lo"],
        hi=row["hi"],
        messages=row["messages"],
        problems=row["problems"],
        sums=sums,
        ends=ends,
        doubled=doubled,
        cluster=Cluster(row["system_identifier"], row["timeline"], row["database"]),
        xid=row["xid"],
        verified_at=EPOCH + timedelta(microseconds=row["verified_us"]),
        warehouse=row["warehouse"],
        revoked=revoked,
        evidence=evidence,
        gone=gone,
    )
