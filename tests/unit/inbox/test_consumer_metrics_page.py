"""The page of a consumer's metrics, and when its process is to be started again."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from outbox.errors import ConfigurationError
from outbox.inbox.assignments import Assignments
from outbox.inbox.core import contact
from outbox.inbox.core.partitions import Limits
from outbox.inbox.counts import MessageCounts
from outbox.inbox.metrics import METRICS, live, prometheus_text, ready, serve_metrics
from outbox.inbox.observing import HANGS_S, observe
from outbox.inbox.vitals import ConsumerVitals, PartitionVitals
from tests.support.members import member_of
from tests.support.scraping import samples

ONE = PartitionVitals("orders", 0, 5, 8, 2, 1, True)
TWO = PartitionVitals("orders", 1, 9, 8, 0, 0, False)
UNKNOWN = PartitionVitals("orders", 2, 0, None, 0, 0, False)


def vitals(*partitions: PartitionVitals, group: str = "points", held: int | None = 3) -> ConsumerVitals:
    messages, retries = MessageCounts().messages | {"applied": 7}, MessageCounts().retries
    return ConsumerVitals(group, "m", partitions, messages, retries, 1, held, 0.5, 1.5, None, None)


class Member(NamedTuple):
    """A consumer that stands as it is stated."""

    stated: ConsumerVitals

    def vitals(self) -> ConsumerVitals:
        return self.stated


def test_lag_is_unknown_until_each_partition_was_fetched_once() -> None:
    assert vitals(ONE, TWO).lag == 3
    assert vitals(ONE, UNKNOWN).lag is None
    assert vitals().lag is None
    assert vitals(ONE, TWO).in_flight == 3


def test_the_page_has_each_metric_of_each_group_with_its_labels() -> None:
    group = 'a"b\\c\nd'
    members = [Member(vitals(ONE, UNKNOWN, group=group)), Member(vitals(TWO))]
    page = prometheus_text(members)
    found = samples(page)
    for name, one in METRICS.items():
        exported = f"{name}_total" if one.kind == "counter" else name
        assert page.count(f"# TYPE {exported} {one.kind}\n") == 1
        assert {key[1] for key in found if key[0] == exported} == {group, "points"}, name
    assert found["outbox_member_lag_messages", group, "orders", "0"] == 3
    assert ("outbox_member_lag_messages", group, "orders", "2") not in found
    assert found["outbox_member_lag_messages", "points", "orders", "1"] == 0
    assert found["outbox_member_messages_total", group, "applied"] == 7
    assert found["outbox_member_partitions_paused", group] == 1
    assert "held_keys" not in prometheus_text([Member(vitals(held=None))])


@pytest.mark.parametrize("members", [[], [Member(vitals()), Member(vitals(ONE))]])
def test_consumers_whose_series_would_be_the_same_are_refused(members: list[Member]) -> None:
    with pytest.raises(ConfigurationError, match="one or more, of different groups"):
        serve_metrics(members, 0)


class Thread(NamedTuple):
    """What is read of a thread that keeps books, or polls."""

    polled_at: float = 0.0
    kept_at: float = 0.0
    trouble: str | None = None
    held_keys: int | None = None
    ends: dict[tuple[str, int], int] = {}  # noqa: RUF012  (never changed)
    stopped: dict[tuple[str, int], str] = {}  # noqa: RUF012  (never changed)


@pytest.mark.parametrize(
    ("silent", "is_ending", "error", "expected"),
    [
        (0, False, None, (True, True, "reads 0 partitions")),
        (HANGS_S, False, None, (True, True, "reads 0 partitions")),
        (HANGS_S + 11, False, None, (False, False, "it hangs: Kafka was polled 131 s ago")),
        (HANGS_S + 11, True, None, (True, False, "it ends")),
        (0, True, ValueError("secret"), (False, False, "it has ended: ValueError")),
    ],
)
def test_a_loop_that_makes_no_progress_hangs_unless_it_ends(
    monkeypatch: pytest.MonkeyPatch,
    silent: float,
    is_ending: bool,
    error: Exception | None,
    expected: tuple[bool, bool, str],
) -> None:
    member = member_of("points", {"t": "*"})
    monkeypatch.setattr("outbox.inbox.observing.monotonic", lambda: silent)
    stated = observe(
        member,
        MessageCounts(),
        Assignments(orderly=False, limits=Limits()),
        Thread(),  # type: ignore[arg-type]
        Thread(),  # type: ignore[arg-type]
        given_up=0,
        is_ending=is_ending,
        error=error,
    )
    [live_check], [ready_check] = list(live([Member(stated)])), list(ready([Member(stated)]))
    assert (live_check.ok, ready_check.ok, ready_check.detail) == expected


def test_a_consumer_that_lost_kafka_is_alive_and_not_ready() -> None:
    member = member_of("points", {"t": "*"})
    for keeper, poller, trouble in (
        (Thread(), Thread(trouble=contact.AWAY), contact.AWAY),
        (Thread(), Thread(trouble=contact.UNKNOWN), contact.UNKNOWN),
        (Thread(trouble="OperationalError"), Thread(), "PostgreSQL: OperationalError"),
    ):
        found = observe(
            member,
            MessageCounts(),
            Assignments(orderly=False, limits=Limits()),
            keeper,  # type: ignore[arg-type]
            poller._replace(polled_at=1e12),  # type: ignore[arg-type]
            given_up=0,
            is_ending=False,
            error=None,
        )
        assert (found.trouble, found.defect) == (trouble, None)
