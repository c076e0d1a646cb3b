"""Certificates: what was proven of a warehouse, window by window, written where retention asks for it.

`checksum` is JSON: order-free sums of what was compared, the offsets where the next verification goes on reading Kafka,
and how many messages were doubled there and let pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from outbox_etl.statements import statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.settings import Settings
    from outbox_etl.sides import Reader
    from outbox_etl.window import Cluster

SQL = "reconcile.sql"


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
    verified_at: datetime = datetime.min

    @property
    def checksum(self) -> str:
        """What is written."""
        said = {"sums": dict(self.sums), "kafka": self.ends, "doubled": self.doubled}
        return json.dumps(said, sort_keys=True, separators=(",", ":"))


def covered(certificates: Iterable[Certificate]) -> tuple[int, Mapping[str, Mapping[str, int]]]:
    """The xid up to which everything is proven without a gap, and up to where Kafka was read for that.

    A verification that found problems takes back what earlier ones proved of its window.
    """
    known = sorted(certificates, key=lambda each: each.verified_at)
    good: list[Certificate] = []
    reach, ends = 0, dict[str, Mapping[str, int]]()
    for each in known:
        if each.problems:
            good = [other for other in good if other.hi <= each.lo or other.lo >= each.hi]
        else:
            good.append(each)
    for each in sorted(good, key=lambda each: (each.lo, each.hi)):
        if each.lo <= reach < each.hi:
            reach = each.hi
            ends = {**ends, **each.ends}
    return reach, ends


def read(reader: Reader, target: str, cluster: Cluster) -> list[Certificate]:
    """The certificates of a warehouse for this cluster's xids."""
    rows = reader.one(statement(SQL, "certificates"))
    mine = rows.where(
        (f.col("target") == target) & (f.col("system_identifier") == int(cluster.system_identifier))
    )
    return [_certificate(row.asDict()) for row in mine.collect()]


def write(spark: SparkSession, settings: Settings, cluster: Cluster, certificate: Certificate) -> None:
    """Write a certificate: one INSERT of its own."""
    row = (
        settings.target,
        int(cluster.system_identifier),
        str(certificate.lo),
        str(certificate.hi),
        certificate.messages,
        certificate.problems,
        certificate.checksum,
    )
    columns = (
        "target string, system_identifier bigint, window_lo string, window_hi string, "
        "messages bigint, problems bigint, checksum string"
    )
    source = settings.source
    properties = {
        "driver": "org.postgresql.Driver",
        "user": source.user,
        "password": source.password,
        "stringtype": "unspecified",  # the server reads the text as xid8
    }
    spark.createDataFrame([row], columns).coalesce(1).write.jdbc(
        source.url, "outbox.certificate", mode="append", properties=properties
    )


def _certificate(row: dict[str, Any]) -> Certificate:
    try:
        told = json.loads(row["checksum"])
        sums, ends, doubled = told["sums"], told["kafka"], int(told.get("doubled", 0))
    except (ValueError, KeyError, TypeError):
        sums, ends, doubled = {}, {}, 0  # written by something else: Kafka is read from its beginning
    return Certificate(
        lo=row["lo"],
        hi=row["hi"],
        messages=row["messages"],
        problems=row["problems"],
        sums=sums,
        ends=ends,
        doubled=doubled,
        verified_at=row["verified_at"],
    )
