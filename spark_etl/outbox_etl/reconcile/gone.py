"""Topics that were deleted: what Kafka no longer has of them cannot be verified, and is accepted by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from outbox_etl.errors import SettingsError
from outbox_etl.reconcile.sources import PLACE

if TYPE_CHECKING:
    from outbox_etl.reconcile.against_kafka import KafkaComparison
    from outbox_etl.reconcile.certificate import Certificate
    from outbox_etl.reconcile.findings import Findings


def refuse_unknown(
    accepted: Collection[str], topics: Iterable[str], certificates: Iterable[Certificate]
) -> None:
    """Refuse to accept the loss of a topic that is unknown.

    Args:
        accepted: the names that were given.
        topics: those of the window.
        certificates: of earlier windows.

    Raises:
        SettingsError: naming the nearest topic.
    """
    known = sorted({*topics, *(topic for each in certificates for topic in (*each.ends, *each.gone))})
    for topic in sorted(set(accepted).difference(known)):
        near = get_close_matches(topic, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "no message of this outbox was published there"
        raise SettingsError(f"--accept-gone {topic}: there is no such topic; {hint}")


def hint(topics: Iterable[str], say: Callable[[str], None]) -> None:
    """Name the option for topics that have publications in the window, and that Kafka has not."""
    for topic in sorted(topics):
        say(f"there is no topic {topic}: if it was deleted, --accept-gone {topic} accepts that")


def count(accepted: Collection[str], kafka: KafkaComparison, found: Findings) -> dict[str, int]:
    """Count, for each accepted topic, the places that do not hold their message, and note the sum."""
    if not accepted:
        return {}
    columns = ["message_id", *PLACE]
    places = kafka.places.where(f.col("topic").isin(sorted(accepted))).select(*columns).distinct()
    lost = places.join(kafka.records, columns, "left_anti").groupBy("topic").count().collect()
    counts = {row["topic"]: row["count"] for row in lost}
    found.notes["gone_and_accepted"] += sum(counts.values())
    return counts
