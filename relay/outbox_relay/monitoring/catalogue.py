"""Every metric by name: its kind, its labels and its meaning. Collectors make families from here only."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

DATABASE = "database"
"""The label of every metric: the name of the database, as the log has it."""


class Described(NamedTuple):
    """What a metric means; its labels are those after `database`."""

    kind: str
    labels: tuple[str, ...]
    text: str


RELAY = {
    "outbox_relay_lanes": Described("gauge", (), "Lanes that this relay owns; 0: it stands by."),
    "outbox_lane_owned": Described("gauge", ("lane",), "1 for each lane that this relay owns."),
    "outbox_published_messages": Described(
        "counter", (), "Messages that Kafka acknowledged and that are recorded."
    ),
    "outbox_published_batches": Described("counter", (), "Batches that were recorded."),
    "outbox_polls": Described("counter", (), "How often new messages were searched for."),
    "outbox_unacknowledged_messages": Described(
        "gauge",
        (),
        "Messages given to Kafka whose acknowledgement is not recorded yet.",
    ),
    "outbox_leases_lost": Described("counter", (), "How often another relay had taken lanes of this one."),
    "outbox_sessions_failed": Described("counter", (), "How often this relay started over after an error."),
    "outbox_unrecorded_messages": Described(
        "counter",
        (),
        "Messages given to Kafka and not recorded when a session ended: the next one reads back which of them Kafka "
        "has, and publishes the others.",
    ),
    "outbox_loop_silent_seconds": Described("gauge", (), "Seconds since the publishing loop made progress."),
    "outbox_kafka_ack_seconds": Described(
        "histogram",
        (),
        "From handing a batch to Kafka to its acknowledgement; one observation for what is acknowledged together.",
    ),
    "outbox_publish_latency_seconds": Described(
        "histogram",
        (),
        "From the insertion of a batch's oldest message to its acknowledgement, one observation for what is "
        "acknowledged together; without half messages and delayed ones, and by the clocks of PostgreSQL and of the "
        "relay.",
    ),
}

CHECKER = {
    "outbox_checks": Described(
        "counter",
        ("group", "result"),
        "What came of half messages that this checker claimed: decided, unknown, not_asked, expired, late, locked.",
    ),
    "outbox_checks_in_flight": Described("gauge", ("group",), "Half messages that are asked about now."),
    "outbox_check_turns_failed": Described("gauge", ("group",), "Turns of the group that failed in a row."),
    "outbox_groups_read_seconds": Described("gauge", (), "Seconds since the checker read its groups."),
}

HOLD = ("kind", "topic", "error")
FIGURES = {
    "outbox_backlog_messages": Described(
        "gauge", ("topic",), "Messages that are due and not published, held ones too."
    ),
    "outbox_backlog_oldest_age_seconds": Described("gauge", ("topic",), "Age of the oldest of them."),
    "outbox_holds": Described(
        "gauge",
        HOLD,
        "Holds, as outbox holds ls lists them: of a message, a key, a partition or a topic, by the error's code.",
    ),
    "outbox_held_messages": Described(
        "gauge", HOLD, "Messages that wait behind those that fail; of a partition or a topic all."
    ),
    "outbox_holds_oldest_age_seconds": Described("gauge", HOLD, "Since the oldest of the holds began."),
    "outbox_waiting_messages": Described(
        "gauge", ("reason",), "Committed messages that are delayed, or have expired."
    ),
    "outbox_half_messages": Described("gauge", ("group", "state"), "Half messages that are not decided."),
    "outbox_half_messages_overdue": Described("gauge", ("group",), "Those that no checker came to in time."),
    "outbox_half_oldest_age_seconds": Described("gauge", ("group", "state"), "Age of the oldest of them."),
    "outbox_dead_messages": Described(
        "gauge", ("group",), "Messages that cannot be published and were set aside."
    ),
    "outbox_alarms": Described("gauge", ("group", "kind"), "1 for each alarm of a producer group."),
    "outbox_problems": Described("gauge", ("kind",), "What outbox status reports as a problem, by kind."),
    "outbox_partitions_ahead": Described("gauge", (), "Partitions of outbox.message that are made ahead."),
    "outbox_ids_left_seconds": Described(
        "gauge",
        (),
        "How long the ids of all partitions will last, by the pace of the last ten minutes or more.",
    ),
    "outbox_history_bytes": Described(
        "gauge", (), "Size of all partitions of messages, publications and events, with indexes."
    ),
    "outbox_history_oldest_age_seconds": Described("gauge", (), "Age of the oldest message that is kept."),
    "outbox_inbox_bytes": Described("gauge", (), "Size of all days of the inbox, with indexes."),
    "outbox_inbox_oldest_age_seconds": Described(
        "gauge", (), "Since the end of the oldest day of the inbox."
    ),
    "outbox_alarms_unsent_seconds": Described(
        "gauge", (), "For how long the oldest alarm has waited to be pushed to the webhook; 0: none does."
    ),
    "outbox_consumer_members": Described("gauge", ("group", "topic"), "Members seen within a minute."),
    "outbox_consumer_idle_members": Described(
        "gauge", ("group", "topic"), "Those of them that have read no partition of any topic for a minute."
    ),
    "outbox_consumer_paused": Described(
        "gauge", ("group", "topic"), "1: the group, or this topic in it, is paused."
    ),
    "outbox_consumer_retries": Described(
        "gauge", ("group", "topic"), "Messages that failed and are tried again."
    ),
    "outbox_consumer_waiting": Described(
        "gauge", ("group", "topic"), "Messages behind one of their key that failed."
    ),
    "outbox_consumer_held_keys": Described("gauge", ("group", "topic"), "Order keys with such a message."),
    "outbox_consumer_full_keys": Described(
        "gauge", ("group", "topic"), "Of any topic, keys with so many that later ones wait in Kafka."
    ),
    "outbox_dead_letters": Described("gauge", ("group", "topic"), "Messages whose tries are used up."),
    "outbox_consumer_lag_messages": Described(
        "gauge", ("group", "topic"), "Offsets that Kafka is ahead of the group."
    ),
    "outbox_consumer_lag_seconds": Described(
        "gauge", ("group", "topic"), "Since the oldest message that the group has not consumed was published."
    ),
    "outbox_figures_timestamp_seconds": Described(
        "gauge", (), "When these figures were read, in seconds since 1970."
    ),
    "outbox_figures_duration_seconds": Described("gauge", (), "How long reading them took."),
}

METRICS = {**RELAY, **CHECKER, **FIGURES}

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


class Families:
    """The families of one scrape, made when their first value is added."""

    def __init__(self) -> None:
        self._made: dict[str, Family] = {}

    def add(self, name: str, database: str, *labels: str, value: float) -> None:
        """Add a value of a gauge or counter. No label may hold a body, a key or the text of an error."""
        made = self._family(name)
        assert not isinstance(made, HistogramMetricFamily)  # noqa: S101  (by its kind)
        made.add_metric((database, *labels), value)

    def add_histogram(self, name: str, database: str, buckets: list[tuple[str, float]], total: float) -> None:
        """Add a histogram.

        Args:
            name: of the metric.
            database: its label.
            buckets: upper bounds as text, with how many observations are at most that; the last is `+Inf`.
            total: the sum of all observations.
        """
        made = self._family(name)
        assert isinstance(made, HistogramMetricFamily)  # noqa: S101  (by its kind)
        made.add_metric((database,), buckets, total)

    def made(self) -> list[Family]:
        """Return them in the order of the catalogue."""
        return [self._made[name] for name in METRICS if name in self._made]

    def _family(self, name: str) -> Family:
        if name not in self._made:
            kind, labels, text = METRICS[name]
            self._made[name] = _new(kind, name, text, (DATABASE, *labels))
        return self._made[name]


def _new(kind: str, name: str, text: str, labels: tuple[str, ...]) -> Family:
    if kind == "histogram":
        return HistogramMetricFamily(name, text, labels=labels)
    if kind == "counter":
        return CounterMetricFamily(name, text, labels=labels)
    return GaugeMetricFamily(name, text, labels=labels)
