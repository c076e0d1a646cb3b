"""The daily marts say what was worked out by hand, whether DuckDB counts or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outbox_etl.source.window import Cluster, Watermark
from outbox_etl.warehouse.duck import Duck
from outbox_etl.warehouse.mart_tables import (
    CHECKS,
    DAYS,
    DECISIONS,
    GAPS,
    KEY_SKEW,
    LATENCY,
    MARTS,
    THROUGHPUT,
)
from outbox_etl.warehouse.marts import Refresh, forget
from tests.support.mart_rows import DAY, HERE, NEXT, Warehouse, at, event, message, publication
from tests.support.spark_marks import MARKS

pytestmark = [*MARKS, pytest.mark.gate]

POLICY = "undecided after 15 checks: the group's policy"


SENT = [
    message(1, "sent", at(DAY), published_at=at(DAY, 1), key=b"12", body=b"345"),
    message(2, "sent", at(DAY, 86_399.9), published_at=at(NEXT), key=None, body="ü".encode()),
    message(3, "sent", at(NEXT)),
    message(4, "sent too", at(NEXT), state="UNKNOWN"),
]


@pytest.mark.feature("H-04")
def test_a_message_is_counted_when_sent_and_again_when_published(made: Warehouse) -> None:
    assert [tuple(row.values()) for row in made.rows(THROUGHPUT) if row["topic"].startswith("sent")] == [
        (DAY, "sent", 2, 1, 5),
        (NEXT, "sent", 1, 1, 2),
        (NEXT, "sent too", 1, 0, 0),
    ]


TIMED = [
    *(
        message(n, "t", at(DAY), published_at=at(DAY) + timedelta(milliseconds=n - 100))
        for n in range(101, 201)
    ),
    message(201, "t half", at(DAY), decided_at=at(DAY, 60), published_at=at(DAY, 60.002)),
    message(202, "t due", at(DAY), deliver_at=at(NEXT), published_at=at(NEXT, 0.0259)),
    message(203, "t early", at(DAY, 1), published_at=at(DAY)),
]


@pytest.mark.feature("H-04")
def test_latency_runs_from_the_decision_or_the_due_time_to_the_publication(made: Warehouse) -> None:
    assert [tuple(row.values()) for row in made.rows(LATENCY) if row["topic"].startswith("t")] == [
        (DAY, "t", 100, 50.5, 95.05, 99.01, 100.0),
        (DAY, "t early", 1, 0.0, 0.0, 0.0, 0.0),
        (DAY, "t half", 1, 2.0, 2.0, 2.0, 2.0),
        (NEXT, "t due", 1, 25.9, 25.9, 25.9, 25.9),
    ]


CHECKER = "checker:g@host:1 (shop)"
Step = tuple[str, str, str, str | None]
DECIDED: dict[int, list[Step]] = {  # message: from, to, actor, reason
    301: [("UNKNOWN", "COMMITTED", "shop", None)],
    302: [("UNKNOWN", "ROLLED_BACK", "shop-7 (shop)", None)],
    303: [("UNKNOWN", "COMMITTED", CHECKER, "check 1 answered COMMIT")],
    304: [("UNKNOWN", "ROLLED_BACK", CHECKER, POLICY)],
    305: [("UNKNOWN", "EXHAUSTED", CHECKER, POLICY)],
    306: [
        ("UNKNOWN", "EXHAUSTED", CHECKER, POLICY),
        ("EXHAUSTED", "COMMITTED", "operator:ann (admin)", "so"),
    ],
    307: [("UNKNOWN", "ROLLED_BACK", "operator:ann (admin)", "so")],
    308: [("UNKNOWN", "COMMITTED", "shop", None), ("COMMITTED", "DEAD", "relay", "too large")],
    309: [],
}
HALVES = [message(n, "half", at(DAY), producer_group="halves") for n in [*DECIDED, 310]]  # 310 is none
DECISIONS_MADE = [
    event(n, at(NEXT, step), from_state=before, to_state=after, actor=actor, reason=reason)
    for n, steps in DECIDED.items()
    for step, (before, after, actor, reason) in enumerate(steps)
]
BIRTHS = [event(n, at(DAY), to_state="UNKNOWN") for n in DECIDED]


@pytest.mark.feature("H-04")
def test_half_messages_are_told_by_their_last_decision_and_who_made_it(made: Warehouse) -> None:
    assert made.rows(DECISIONS) == [
        {
            "day": DAY, "producer_group": "halves", "half": 9, "committed": 4, "rolled_back": 3, "exhausted": 1,
            "undecided": 1, "by_producer": 3, "by_checker": 1, "by_policy": 1, "by_operator": 2,
        }
    ]  # fmt: skip


ASKED = [message(401, "asked", at(DAY), producer_group="g"), message(402, "asked", at(DAY))]
ANSWERS = ["UNKNOWN", "UNKNOWN", "ROLLBACK", "COMMIT"]
CHECKED = [
    event(401, at(DAY), kind="check", answer="UNKNOWN"),
    *(event(401, at(NEXT, n), kind="check", answer=answer) for n, answer in enumerate(ANSWERS)),
    *(event(402, at(NEXT, n), from_state="COMMITTED", to_state="DEAD") for n in (1, 2)),
]


@pytest.mark.feature("H-04")
def test_checks_and_dead_messages_are_counted_by_group_when_they_happen(made: Warehouse) -> None:
    assert [tuple(row.values()) for row in made.rows(CHECKS)] == [
        (DAY, "g", 1, 0, 0, 1, 0),
        (NEXT, None, 0, 0, 0, 0, 1),
        (NEXT, "g", 4, 1, 1, 2, 0),
        (NEXT, "halves", 0, 0, 0, 0, 1),
    ]


KEYS = [b"big"] * 8 + [bytes([n]) for n in range(12)]
KEYED = [
    *(message(500 + n, "key", at(DAY), key=key) for n, key in enumerate(KEYS)),
    message(590, "key too", at(DAY), key=b"x", order_key=b"y"),
    message(591, "key too", at(DAY)),
]


@pytest.mark.feature("H-04")
def test_the_largest_order_keys_are_set_against_all(made: Warehouse) -> None:
    assert [tuple(row.values()) for row in made.rows(KEY_SKEW) if row["topic"].startswith("key")] == [
        (DAY, "key", 20, 13, b"big", 8 / 20, 17 / 20),
        (DAY, "key too", 1, 1, b"y", 1.0, 1.0),
    ]


@pytest.fixture(scope="module", params=[True, False], ids=["duckdb", "spark"])
def made(
    mart_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Warehouse:
    """A warehouse with all of the above, and its marts."""
    place = tmp_path_factory.mktemp("made") / "warehouse"
    warehouse = Warehouse(mart_spark, place, by_duck=request.param)
    events = [*BIRTHS, *DECISIONS_MADE, *CHECKED]
    warehouse.fill(10, messages=[*SENT, *TIMED, *HALVES, *ASKED, *KEYED], events=events)
    assert warehouse.make(10) == [DAY, NEXT]
    assert not [line for line in warehouse.said if "by Spark" in line]
    return warehouse


@pytest.fixture(params=[True, False], ids=["duckdb", "spark"])
def warehouse(warehouse: Warehouse, request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    """A warehouse whose marts DuckDB makes, and one whose marts Spark makes."""
    warehouse.by_duck = request.param
    yield warehouse
    assert not [line for line in warehouse.said if "by Spark" in line]


@pytest.mark.feature("H-04")
def test_offsets_are_held_against_those_of_the_day_before(warehouse: Warehouse) -> None:
    def published(number: int, day: date, offset: int) -> dict[str, Any]:
        return message(number, "a", at(DAY), published_at=at(day), partition=0, offset=offset)

    warehouse.fill(
        10,
        messages=[published(1, DAY, 5), published(2, DAY, 6), published(3, DAY, 9)],
        publications=[
            publication(1, at(DAY), 5),
            publication(2, at(DAY), 6),
            publication(2, at(DAY, 1), 8),
            publication(3, at(DAY), 9),
        ],
    )
    warehouse.make(10)
    assert [tuple(row.values()) for row in warehouse.rows(GAPS)] == [(DAY, "a", 0, 5, 9, 4, 1, 1)]
    later = at(NEXT, 86_400)  # the topic was made anew
    warehouse.fill(
        20,
        messages=[published(4, NEXT, 12), message(5, "a", later, published_at=later, partition=0, offset=3)],
        publications=[publication(4, at(NEXT), 12), publication(5, later, 3)],
    )
    warehouse.make(20)
    assert [tuple(row.values()) for row in warehouse.rows(GAPS)] == [
        (DAY, "a", 0, 5, 9, 4, 1, 1),
        (NEXT, "a", 0, 12, 12, 1, 2, 0),
        (later.date(), "a", 0, 3, 3, 1, 0, 0),
    ]


def test_marts_made_again_are_the_same_and_nothing_new_writes_nothing(warehouse: Warehouse) -> None:
    messages = [message(n, "a", at(DAY), published_at=at(NEXT), key=b"k") for n in range(5)]
    warehouse.fill(10, messages=messages, events=[event(1, at(DAY), to_state="UNKNOWN")])
    assert warehouse.make(10) == [DAY, NEXT]
    first = {table.name: warehouse.rows(table) for table in (*MARTS, DAYS)}
    commits = warehouse.commits()
    assert warehouse.make(10) == []
    assert warehouse.commits() == commits
    assert warehouse.make(10, everything=True) == [DAY, NEXT]
    assert {table.name: warehouse.rows(table) for table in (*MARTS, DAYS)} == first


def test_only_the_days_of_later_windows_are_made_anew_and_all_after_a_fail_over(warehouse: Warehouse) -> None:
    warehouse.fill(10, messages=[message(1, "a", at(DAY))])
    assert warehouse.make(10) == [DAY]
    warehouse.fill(20, messages=[message(2, "a", at(NEXT))])
    assert warehouse.make(20) == [NEXT]
    assert [(row["day"], row["window_hi"]) for row in warehouse.rows(DAYS)] == [(DAY, 10), (NEXT, 20)]
    assert [(row["day"], row["sent"]) for row in warehouse.rows(THROUGHPUT)] == [(DAY, 1), (NEXT, 1)]
    target = warehouse.target
    target.prepare(THROUGHPUT, DAYS)
    for table in (THROUGHPUT, DAYS):  # what a run leaves that wrote some marts, and not mart_days
        target.replace(table, target.read(table).where("false"), f"day = DATE'{NEXT}'")
    assert warehouse.make(20) == [NEXT]
    assert [(row["day"], row["sent"]) for row in warehouse.rows(THROUGHPUT)] == [(DAY, 1), (NEXT, 1)]
    for cluster in (Cluster("8", 1, 5), Cluster("8", 2, 5), Cluster("8", 2, 6)):
        assert warehouse.make(21, cluster=cluster) == [DAY, NEXT]
        where = f"8/{cluster.timeline}/{cluster.database}"
        assert {row["cluster"] for row in warehouse.rows(DAYS)} == {where}


@pytest.mark.feature("H-04")
def test_after_a_backfill_no_day_keeps_figures_of_rows_that_moved_or_were_removed(
    warehouse: Warehouse,
) -> None:
    twice = [message(n, "a", at(DAY), published_at=at(DAY), partition=0, offset=n, key=b"k") for n in (1, 2)]
    warehouse.fill(
        10,
        messages=twice,
        publications=[publication(n, at(DAY), n) for n in (1, 2)],
        events=[event(1, at(DAY), kind="check", answer="COMMIT")],
    )
    assert warehouse.make(10) == [DAY]
    forget(warehouse.target)
    # A backfill that ends at the same window: what was published is found on the next day.
    moved = [{**each, "published_at": at(NEXT)} for each in twice]
    warehouse.fill(10, messages=moved, publications=[publication(n, at(NEXT), n) for n in (1, 2)])
    assert warehouse.make(10) == [DAY, NEXT]
    assert [tuple(row.values()) for row in warehouse.rows(THROUGHPUT)] == [
        (DAY, "a", 2, 0, 0),
        (NEXT, "a", 0, 2, 2),
    ]
    assert [(row["day"], row["published"]) for row in warehouse.rows(LATENCY)] == [(NEXT, 2)]
    assert [(row["day"], row["seen"]) for row in warehouse.rows(GAPS)] == [(NEXT, 2)]
    assert warehouse.rows(CHECKS) == []
    # And so it is without a backfill when all days are asked for.
    born = [{**each, "born_at": at(NEXT)} for each in moved]
    warehouse.fill(10, messages=born, publications=[publication(n, at(NEXT), n) for n in (1, 2)])
    assert warehouse.make(10) == []
    assert warehouse.make(10, everything=True) == [NEXT]
    for table in (THROUGHPUT, KEY_SKEW, LATENCY, GAPS, DAYS):
        assert {row["day"] for row in warehouse.rows(table)} == {NEXT}, table.name


def test_what_is_to_be_made_is_asked_for_in_few_jobs_of_spark(warehouse: Warehouse) -> None:
    context = warehouse.spark.sparkContext
    warehouse.fill(
        10,
        messages=[message(1, "a", at(DAY), published_at=at(DAY), partition=0, offset=1)],
        publications=[publication(1, at(DAY), 1)],
        events=[event(1, at(DAY), kind="check", answer="COMMIT")],
    )
    warehouse.make(10)
    group = f"asking by duck: {warehouse.by_duck}"
    context.setJobGroup(group, "")
    with closing(Duck(1)) as duck:
        marts = Refresh(
            warehouse.spark,
            warehouse.target,
            Watermark(10, 0, HERE),
            warehouse.said.append,
            duck=duck if warehouse.by_duck else None,
        )
        found = marts.look(-1)
    context.setJobGroup("making", "")
    assert found.all == [DAY]
    jobs = len(context.statusTracker().getJobIdsForGroup(group))
    assert jobs in ([0] if warehouse.by_duck else range(1, 5)), (
        "each costs a third of a second, however few the rows"
    )
