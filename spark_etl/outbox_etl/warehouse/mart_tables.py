"""The tables of the daily marts: their columns, each with what it means.

Days are of UTC. Every time is the clock of the PostgreSQL server.
"""

from __future__ import annotations

from outbox_etl.warehouse.tables import Column, Table


def _mart(name: str, comment: str, *rows: tuple[str, str, str]) -> Table:
    columns = tuple(Column(*row) for row in rows)
    order = tuple(name for name in ("day", "topic", "partition", "producer_group") if name in _names(columns))
    return Table(name, comment, columns, day="day", order=order)


def _names(columns: tuple[Column, ...]) -> set[str]:
    return {column.name for column in columns}


TOPIC = ("topic", "string", "the topic")
GROUP = ("producer_group", "string", "the producer group; null: sent without one")

THROUGHPUT = _mart(
    "mart_throughput",
    "How much was sent and published, per day and topic",
    ("day", "date", "the day (UTC) of the insert for `sent`, of the publication for the others"),
    TOPIC,
    ("sent", "bigint", "messages inserted on that day"),
    ("published", "bigint", "messages first published on that day"),
    ("bytes", "bigint", "bytes of their keys and bodies"),
)
LATENCY = _mart(
    "mart_latency",
    "How long messages took to be published, per day and topic",
    ("day", "date", "the day (UTC) of the publication"),
    TOPIC,
    ("published", "bigint", "messages published, all measured"),
    (
        "p50_ms",
        "double",
        "median, in ms, from the decision (or insert, or deliver_at if later) to the first publication",
    ),
    ("p95_ms", "double", "the same, 95th percentile"),
    ("p99_ms", "double", "the same, 99th percentile"),
    ("max_ms", "double", "the longest"),
)
DECISIONS = _mart(
    "mart_decisions",
    "What became of the half messages of a day, per producer group",
    ("day", "date", "the day (UTC) of the insert, whenever it was decided"),
    GROUP,
    ("half", "bigint", "half messages: the sum of the next four"),
    ("committed", "bigint", "decided: publish"),
    ("rolled_back", "bigint", "decided: never publish"),
    ("exhausted", "bigint", "checks or age used up, left to an operator"),
    ("undecided", "bigint", "not decided yet"),
    ("by_producer", "bigint", "of committed and rolled_back: by the producer itself"),
    ("by_checker", "bigint", "the same, by the result of a check"),
    (
        "by_policy",
        "bigint",
        "the same, by the group's policy after the last check",
    ),
    ("by_operator", "bigint", "the same, by an operator"),
)
CHECKS = _mart(
    "mart_checks",
    "Check-backs, and messages that could not be published, per day and producer group",
    ("day", "date", "the day (UTC) on which it happened"),
    GROUP,
    ("checks", "bigint", "how often a checker was asked: the sum of the next three"),
    ("answered_commit", "bigint", "checks that returned COMMIT"),
    ("answered_rollback", "bigint", "checks that returned ROLLBACK"),
    ("answered_unknown", "bigint", "checks that returned UNKNOWN, or failed"),
    ("dead", "bigint", "messages that became DEAD on that day"),
)
KEY_SKEW = _mart(
    "mart_key_skew",
    "How evenly messages spread over order keys, per day and topic",
    ("day", "date", "the day (UTC) of the insert"),
    TOPIC,
    ("messages", "bigint", "messages with an order key or a key"),
    ("keys", "bigint", "how many different ones"),
    ("top_key", "binary", "the one with most messages"),
    ("top_share", "double", "its share of the messages, 0 to 1"),
    ("top10_share", "double", "the share of the ten with most"),
)
GAPS = _mart(
    "mart_gaps",
    "Offsets that no publication accounts for, per day and Kafka partition",
    ("day", "date", "the day (UTC) on which the publication was recorded"),
    TOPIC,
    ("partition", "int", "Kafka partition"),
    ("first_offset", "bigint", "the lowest offset that was recorded"),
    ("last_offset", "bigint", "the highest"),
    ("seen", "bigint", "different offsets that were recorded"),
    (
        "missing",
        "bigint",
        "offsets between the last of the day before and this day's last without a publication; below 0: late",
    ),
    ("repeated", "bigint", "publications after a message's first (at-least-once)"),
)
DAYS = _mart(
    "mart_days",
    "Which days the marts are made for; written last",
    ("day", "date", "the day (UTC)"),
    ("window_hi", "bigint", "the last window whose rows are in that day's marts"),
    ("cluster", "string", "its system identifier, timeline and database oid"),
)

MARTS = (THROUGHPUT, LATENCY, DECISIONS, CHECKS, KEY_SKEW, GAPS)
