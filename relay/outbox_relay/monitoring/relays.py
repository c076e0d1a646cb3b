"""The metrics and checks of the relays of one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from outbox.probes import ProbeCheck
from outbox_relay.monitoring.catalogue import Families
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.publisher.vitals import BOUNDS, Times, Vitals

ReadVitals = Callable[[], Mapping[str, Vitals]]
"""Returns the relays of the process by the names of their databases."""


def observe_relays(monitoring: Monitoring, relays: ReadVitals) -> None:
    """Offer what the relays of this process show of themselves."""

    def live() -> Iterator[ProbeCheck]:
        for database, vitals in relays().items():
            silent = f"the publishing loop made progress {vitals.silent:.1f} s ago"
            yield ProbeCheck(database, not vitals.hangs, f"{silent}: it hangs" if vitals.hangs else silent)

    def ready() -> Iterator[ProbeCheck]:
        for database, vitals in relays().items():
            trouble = vitals.trouble
            lanes = f"owns {len(vitals.lanes)} lanes" if vitals.lanes else "stands by"
            yield ProbeCheck(database, trouble is None, trouble or lanes)

    def metrics(families: Families) -> None:
        for database, vitals in relays().items():
            _add(families, database, vitals)

    monitoring.live.append(live)
    monitoring.ready.append(ready)
    monitoring.metrics.append(metrics)


def _add(families: Families, database: str, vitals: Vitals) -> None:
    counts, lanes = vitals.counts, vitals.lanes
    for name, value in (
        ("outbox_relay_lanes", len(lanes)),
        ("outbox_published_messages", counts.recorded),
        ("outbox_published_batches", counts.batches),
        ("outbox_polls", counts.polls),
        ("outbox_unacknowledged_messages", counts.unacknowledged),
        ("outbox_leases_lost", vitals.leases_lost),
        ("outbox_sessions_failed", vitals.failed),
        ("outbox_unrecorded_messages", vitals.unrecorded),
        ("outbox_loop_silent_seconds", vitals.silent),
    ):
        families.add(name, database, value=value)
    for lane in sorted(lanes):
        families.add("outbox_lane_owned", database, str(lane), value=1)
    families.add_histogram("outbox_kafka_ack_seconds", database, *_histogram(counts.ack))
    families.add_histogram("outbox_publish_latency_seconds", database, *_histogram(counts.age))


def _histogram(times: Times) -> tuple[list[tuple[str, float]], float]:
    bounds = [*(str(bound) for bound in BOUNDS), "+Inf"]
    return list(zip(bounds, itertools.accumulate(list(times.classes)), strict=True)), times.total
