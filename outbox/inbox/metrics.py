"""Metrics and health of the consumers of a process: as Prometheus' text, and served with probes over HTTP.

    consumer = PushConsumer("points", …)
    with serve_metrics([consumer], 9466):
        consumer.run()

Pages show what the consumers noted, so no request reads PostgreSQL or Kafka, and an outage makes none of them hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import NamedTuple, Protocol

from outbox.errors import ConfigurationError
from outbox.inbox.vitals import ConsumerVitals
from outbox.probes import MakePage, Page, ProbeCheck, ProbeServer, probe

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MemberMetric(NamedTuple):
    """What a metric of a consumer's process means; its labels are those after `group`."""

    kind: str
    labels: tuple[str, ...]
    text: str


PLACE = ("topic", "partition")
METRICS = {
    "outbox_member_partitions": MemberMetric("gauge", (), "Partitions that this process reads."),
    "outbox_member_partitions_paused": MemberMetric(
        "gauge", (), "Those of which so much waits in memory that no more is fetched."
    ),
    "outbox_member_partitions_stopped": MemberMetric(
        "gauge",
        (),
        'Partitions that are not read: Kafka has deleted messages that were not handled, and on_gap is "stop".',
    ),
    "outbox_member_pauses": MemberMetric(
        "gauge", (), "Pauses that the member obeys: of its group, and of topics in it."
    ),
    "outbox_member_lag_messages": MemberMetric(
        "gauge",
        PLACE,
        "Offsets that are not done, by the end of the partition at the last fetch: for a paused one at least so many.",
    ),
    "outbox_member_waiting_messages": MemberMetric(
        "gauge", PLACE, "Messages in memory that no listener has yet."
    ),
    "outbox_member_running_messages": MemberMetric("gauge", PLACE, "Messages that listeners have."),
    "outbox_member_messages": MemberMetric(
        "counter",
        ("result",),
        "Messages that need no more: applied, discarded, refused (taken over before), parked, dead, gone, skipped.",
    ),
    "outbox_member_retries": MemberMetric(
        "counter", ("result",), "Retries that ended: applied, discarded, failed, dead."
    ),
    "outbox_member_erased": MemberMetric(
        "counter",
        (),
        "Messages that were found erased, because their keys were destroyed; they are discarded.",
    ),
    "outbox_member_held_keys": MemberMetric("gauge", (), "Order keys of the whole group that are held."),
    "outbox_member_full_keys": MemberMetric(
        "gauge",
        (),
        "Held keys whose later messages wait in Kafka: as many wait in PostgreSQL as may.",
    ),
    "outbox_member_listeners_given_up": MemberMetric(
        "gauge", (), "Listeners that ran past their time-out and have not returned."
    ),
    "outbox_member_poll_seconds": MemberMetric(
        "gauge", (), "Seconds since the loop that polls Kafka made progress."
    ),
    "outbox_member_store_seconds": MemberMetric(
        "gauge", (), "Seconds since the thread that stores positions in PostgreSQL made progress."
    ),
}


class HasVitals(Protocol):
    """A consumer."""

    def vitals(self) -> ConsumerVitals:
        """Return how it stands."""
        ...


def prometheus_text(consumers: Sequence[HasVitals]) -> str:
    """Return the metrics of consumers in Prometheus' text format, for a server of your own."""
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for consumer in consumers:
        vitals = consumer.vitals()
        for name, labels, value in _samples(vitals):
            pairs = zip(("group", *METRICS[name].labels), (vitals.group, *labels), strict=True)
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
            samples[name].append(f"{_exported(name)}{{{shown}}} {value}")
    lines: list[str] = []
    for name, found in samples.items():
        if found:
            exported = _exported(name)
            lines += (
                f"# HELP {exported} {METRICS[name].text}",
                f"# TYPE {exported} {METRICS[name].kind}",
                *found,
            )
    return "\n".join(lines) + "\n"


def live(consumers: Sequence[HasVitals]) -> Iterator[ProbeCheck]:
    """Yield whether each consumer works; one that waits for a server does."""
    for consumer in consumers:
        vitals = consumer.vitals()
        detail = f"Kafka was polled {vitals.polled_ago:.1f} s ago"
        yield ProbeCheck(vitals.group, vitals.defect is None, vitals.defect or detail)


def ready(consumers: Sequence[HasVitals]) -> Iterator[ProbeCheck]:
    """Yield whether each consumer could consume now. One without partitions is ready to take some."""
    for consumer in consumers:
        vitals = consumer.vitals()
        trouble = vitals.defect or vitals.trouble
        yield ProbeCheck(
            vitals.group, trouble is None, trouble or f"reads {len(vitals.partitions)} partitions"
        )


def serve_metrics(
    consumers: Sequence[HasVitals], port: int, host: str = "127.0.0.1", *, livez: int | None = None
) -> ProbeServer:
    """Serve `/livez`, `/readyz` and `/metrics` of consumers, between `with` and the end of its block.

    Args:
        consumers: push consumers of this process, before or after their start; of different groups.
        port: 0: the system chooses one; see `port` of what is returned.
        host: an address of this machine; `0.0.0.0` in a container.
        livez: a second port, which serves `/livez` alone: for an orchestrator, when others reach the first one.

    Raises:
        ConfigurationError: No consumer, or two of one group, whose series would be the same.
        OSError: from `with`; the address is taken, or not of this machine.
    """
    groups = [consumer.vitals().group for consumer in consumers]
    if not groups or len(set(groups)) < len(groups):
        raise ConfigurationError(
            f"consumers: of the groups {groups}; allowed: one or more, of different groups. Serve another member of a "
            "group at another port"
        )

    def metrics(_: str) -> Page:
        return Page(HTTPStatus.OK, CONTENT_TYPE, prometheus_text(consumers).encode())

    pages: dict[str, MakePage] = {
        "/livez": probe(lambda: live(consumers)),
        "/readyz": probe(lambda: ready(consumers)),
        "/metrics": metrics,
    }
    return ProbeServer(host, port, pages, livez=None if livez is None else (host, livez))


def _samples(vitals: ConsumerVitals) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "outbox_member_partitions", (), len(vitals.partitions)
    yield "outbox_member_partitions_paused", (), sum(each.is_paused for each in vitals.partitions)
    yield "outbox_member_partitions_stopped", (), len(vitals.stopped)
    yield "outbox_member_pauses", (), len(vitals.paused)
    for each in vitals.partitions:
        place = (each.topic, str(each.partition))
        if each.lag is not None:
            yield "outbox_member_lag_messages", place, each.lag
        yield "outbox_member_waiting_messages", place, each.waiting
        yield "outbox_member_running_messages", place, each.running
    for result, count in vitals.messages.items():
        yield "outbox_member_messages", (result,), count
    for result, count in vitals.retries.items():
        yield "outbox_member_retries", (result,), count
    yield "outbox_member_erased", (), vitals.erased
    if vitals.held_keys is not None:
        yield "outbox_member_held_keys", (), vitals.held_keys
    yield "outbox_member_full_keys", (), vitals.full_keys
    yield "outbox_member_listeners_given_up", (), vitals.given_up
    yield "outbox_member_poll_seconds", (), round(vitals.polled_ago, 3)
    yield "outbox_member_store_seconds", (), round(vitals.stored_ago, 3)


def _exported(name: str) -> str:
    """Return the name of a metric as it is exported."""
    return f"{name}_total" if METRICS[name].kind == "counter" else name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
