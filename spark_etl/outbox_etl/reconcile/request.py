"""What a verification of PostgreSQL, Kafka and the warehouse is asked for, and what it found; its options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import SettingsError
from outbox_etl.options.option import Option

if TYPE_CHECKING:
    from outbox_etl.reconcile.findings import Finding

LIMIT, MOST_LISTED = 100, 100_000
"""Findings of one kind that are listed unless another number is given, and the most that can be."""


@dataclass(frozen=True, slots=True)
class ReconcileRequest:
    """What a verification compares, and what it may let pass."""

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings of librdkafka; they may hold secrets."""
    everything: bool = False
    """From the first transaction on, not from the last certificate."""
    exactly_once: bool = False
    """Doubled records in Kafka are problems."""
    shared_topics: bool = False
    accept_dropped: bool = False
    """What PostgreSQL dropped before it was verified here is noted, not a problem."""
    accept_gone: frozenset[str] = frozenset()
    """Topics that were deleted: what Kafka no longer has of them is noted, not a problem."""
    limit: int = LIMIT
    """Findings of one kind that are listed."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What a verification found. `problems` = 0 is the proof, and stands in the certificate."""

    target: str
    window_lo: int
    window_hi: int
    messages: int = 0
    records: int = 0
    problems: int = 0
    totals: Mapping[str, int] = field(default_factory=dict)
    """Problems by kind and store."""
    found: tuple[Finding, ...] = ()
    allowed: tuple[Finding, ...] = ()
    """Doubled records, unless they are problems; at most as many as are listed of a kind."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts of facts that are not problems."""
    partitions: tuple[Mapping[str, Any], ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict)
    certified: bool = False
    revoked: str = ""
    """Why the certificates before were taken back, by this run or by an export since the last verification."""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: proven, or nothing new to prove; 1: there are problems, or what was proven before is not true any more."""
        return 1 if self.problems or self.revoked else 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON's types, for machines."""
        return {**asdict(self), "exit_code": self.exit_code}

    def lines(self) -> list[str]:
        """For people: a table of the partitions, then every finding that is listed, then the result."""
        head = ("topic", "partition", "postgres", "kafka", "warehouse", "foreign", "expired", "checksum")
        rows = [head]
        for row in self.partitions:
            sums = {row[f"{name}_checksum"] for name in ("postgres", "kafka", "warehouse")}
            said = sums.pop() if len(sums) == 1 else "they differ"
            counts = (
                row[name]
                for name in ("partition", "postgres", "kafka", "warehouse", "foreign", "no_longer_in_kafka")
            )
            rows.append((row["topic"], *(str(count) for count in counts), said))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        notes = [f"{count} {name.replace('_', ' ')}" for name, count in self.notes.items()]
        result = f"{self.messages} messages of transactions {self.window_lo} to {self.window_hi} of {self.target}: "
        result += (
            f"{self.problems} problems"
            if self.problems
            else "proven"
            if self.certified
            else "nothing new to prove"
        )
        return [
            *(table if self.partitions else ()),
            *(f"! {finding}" for finding in self.found),
            *(f"  allowed: {finding}" for finding in self.allowed),
            *(f"  note: {note}" for note in notes),
            *(f"  {count} x {name}" for name, count in self.totals.items()),
            *((f"! all earlier certificates were taken back: {self.revoked}",) if self.revoked else ()),
            result,
        ]


OPTIONS = (
    Option("--all", "Verify everything that all three still hold, not only what is new.", flag=True),
    Option(
        "--exactly-once",
        "Count doubled records in Kafka as problems; without it they are listed as allowed, because at-least-once "
        "delivery permits them after a crash.",
        flag=True,
    ),
    Option(
        "--shared-topics",
        "Other outboxes publish to these topics: records of unknown messages are theirs.",
        flag=True,
    ),
    Option(
        "--accept-dropped",
        "Let messages pass that PostgreSQL dropped, by another target's certificates, before they were verified here.",
        flag=True,
    ),
    Option(
        "--accept-gone",
        "Let messages pass that Kafka no longer has, because this topic was deleted (and made again); repeatable.",
        metavar="TOPIC",
        repeated=True,
    ),
    Option(
        "--limit",
        "Findings of one kind that are listed; all are counted.",
        metavar="NUMBER",
        default=LIMIT,
        limits=(0, MOST_LISTED),
    ),
    Option(
        "--bootstrap-servers",
        "Kafka brokers to ask first.",
        twin="OUTBOX_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,…",
    ),
    Option(
        "--kafka-config",
        "Setting of librdkafka, such as security.protocol=SASL_SSL; repeatable.",
        twin="OUTBOX_KAFKA_CONFIG",
        metavar="NAME=VALUE",
        repeated=True,
    ),
)
"""The options that only reconcile has."""


def requested(given: argparse.Namespace) -> ReconcileRequest:
    """Build the request from the options that were given.

    Raises:
        SettingsError: naming the option and what is allowed.
    """
    if not given.bootstrap_servers:
        raise SettingsError("no Kafka broker given: use --bootstrap-servers or set OUTBOX_BOOTSTRAP_SERVERS")
    if any("=" not in pair for pair in given.kafka_config):
        # The text is not repeated: it may be half of a password.
        raise SettingsError("--kafka-config is not a valid setting: expected NAME=VALUE")
    for option in OPTIONS:
        option.check(given)
    config = dict(pair.split("=", 1) for pair in given.kafka_config)
    return ReconcileRequest(
        given.bootstrap_servers,
        config,
        everything=given.all,
        exactly_once=given.exactly_once,
        shared_topics=given.shared_topics,
        accept_dropped=given.accept_dropped,
        accept_gone=frozenset(given.accept_gone),
        limit=given.limit,
    )
