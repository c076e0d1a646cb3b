"""Certificates count for the warehouse that they were given to, and no longer than it holds what they say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outbox_etl.reconcile.certificate import Certificate, covered, in_force
from outbox_etl.reconcile.revocation import ABOVE_ALL_XIDS, doubt, latest
from outbox_etl.source.window import Cluster, Watermark


def given(*windows: tuple[int, int, int, str]) -> list[Certificate]:
    """Certificates one after the other, by a clock that runs backwards: lo, hi, problems, warehouse."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Certificate(
            lo, hi, 0, problems, xid=xid, verified_at=start - timedelta(hours=xid), warehouse=warehouse
        )
        for xid, (lo, hi, problems, warehouse) in enumerate(windows)
    ]


def mark(hi: int) -> Watermark:
    return Watermark(hi, 1, Cluster("7", 1))


def test_only_the_warehouse_s_own_certificates_reach() -> None:
    found = given((0, 10, 0, "a"), (10, 20, 0, "b"), (10, 15, 0, "a"))
    assert covered(found, "a")[0] == 15
    assert covered(found, "b")[0] == 0, "nothing below 10 was proven of it"


def test_a_revocation_takes_back_all_that_came_before_whichever_warehouse_it_names() -> None:
    found = given((0, 10, 0, "a"), (0, ABOVE_ALL_XIDS, 1, ""), (5, 20, 0, "a"))
    assert covered(found, "a")[0] == 0
    assert [each.lo for each in in_force(found)] == [5]


@pytest.mark.parametrize(
    ("warehouse", "filled", "reason"),
    [
        ("a", mark(20), ""),
        ("a", mark(25), ""),
        ("a", mark(19), "filled to transaction 19 and was verified to 20"),
        ("b", mark(25), "another warehouse"),
        ("", None, "empty or gone"),
    ],
)
def test_certificates_are_doubted_when_the_warehouse_is_not_what_was_verified(
    warehouse: str, filled: Watermark | None, reason: str
) -> None:
    found = given((0, 10, 0, "a"), (10, 20, 0, "a"))
    told = doubt(found, warehouse, filled)
    assert reason in told
    assert bool(told) == bool(reason)


def test_what_was_taken_back_is_not_taken_back_again() -> None:
    found = given((0, 20, 0, "a"), (0, ABOVE_ALL_XIDS, 1, ""))
    assert doubt(found, "b", mark(3)) == ""
    assert doubt([], "b", None) == ""


def test_a_revocation_is_told_until_the_next_verification() -> None:
    first, second = given((0, ABOVE_ALL_XIDS, 1, ""), (0, 20, 0, "b"))
    revoked = replace(first, revoked="gone")
    assert latest([revoked]) == "gone"
    assert latest([revoked, second]) == ""
    assert latest([]) == ""
