"""Only certificates of the target, of this cluster, without a gap and without problems, let a range be dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox_local.stack.api import Stack
from outbox_relay.retention import ranges
from outbox_relay.retention.removal import Removal
from tests.support.full_partitions import History
from tests.support.outbox_command import Ran, outbox
from tests.support.plain_inserts import decide, insert
from tests.support.promotion import promote
from tests.support.publications import value
from tests.support.stopped_lanes import set_aside

BOUNDS = """
    SELECT min(x::text::bigint), max(x::text::bigint)
    FROM (SELECT xid FROM outbox.message WHERE id <= 1000
          UNION ALL SELECT xid FROM outbox.publication WHERE lo <= 1000
          UNION ALL SELECT xid FROM outbox.event WHERE id <= 1000) u (x)
"""


@pytest.fixture
def history(database: str) -> Iterator[History]:
    """One full range of ids, published."""
    history = History(database)
    history.fill(0, publish=False)
    for _ in range(3):
        history.conn.execute("SELECT pg_current_xact_id()")
    history.publish(0)
    history.leave(1)
    history.publish(1)
    yield history
    history.close()


def bounds(history: History) -> tuple[int, int]:
    row = history.conn.execute(BOUNDS).fetchone()
    assert row is not None
    return row[0], row[1]


def look(history: History, *arguments: str) -> Ran:
    options = ["--older-than", "0s", "--wait", "10s", "--dry-run", "--json", *arguments]
    return outbox("history", "drop", *options, OUTBOX_DSN=history.dsn)


def reasons(history: History, *arguments: str) -> list[str]:
    """What keeps the first range."""
    return [reason["name"] for reason in look(history, *arguments).json["partitions"][0]["reasons"]]


def test_windows_that_follow_each_other_cover_what_lies_in_them(history: History) -> None:
    first, last = bounds(history)
    middle = (first + last) // 2 + 1
    history.certify(lo=middle, hi=last + 1)
    assert reasons(history) == ["unexported"]
    history.certify(lo=first, hi=middle)
    assert reasons(history) == []
    assert look(history).code == 0


@pytest.mark.feature("H-03")
def test_without_any_certificate_nothing_is_dropped(history: History) -> None:
    ran = look(history)
    assert (ran.code, reasons(history)) == (1, ["unexported"])
    assert reasons(history, "--target", "lake") == ["unexported"]


def test_a_window_that_ends_at_the_last_transaction_does_not_cover_it(history: History) -> None:
    first, last = bounds(history)
    history.certify(lo=first, hi=last)
    ran = look(history)
    assert (ran.code, reasons(history)) == (1, ["unexported"])
    assert f"covers xids {last} to {last}" in ran.json["partitions"][0]["reasons"][0]["detail"]


def test_a_gap_between_windows_is_named(history: History) -> None:
    first, last = bounds(history)
    history.certify(lo=first, hi=first + 1)
    history.certify(lo=first + 2, hi=last + 1)
    assert (
        f"covers xids {first + 1} to {first + 1}"
        in look(history).json["partitions"][0]["reasons"][0]["detail"]
    )


def test_an_event_outside_the_windows_is_not_exported(history: History) -> None:
    _, last = bounds(history)
    history.certify(hi=last + 1)
    assert reasons(history) == []
    history.conn.execute(
        "INSERT INTO outbox.event (id, message_id, kind, answer, actor) "
        "SELECT id, message_id, 'check', 'COMMIT', 'test' FROM outbox.message WHERE id = 1"
    )
    assert reasons(history) == ["unexported"]


def test_a_publication_in_a_later_range_has_to_be_exported_too(history: History) -> None:
    history.go_to(500)
    half = insert(history.conn, "t", "h", b"half", state="UNKNOWN", producer_group="g")
    history.go_to(1_500)
    decide(history.conn, half, "COMMITTED")
    decided = value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    history.certify(hi=decided)
    history.publish(1)
    assert reasons(history) == ["unexported"]
    history.certify(lo=decided, hi=decided + 1_000_000)
    assert reasons(history) == []


def test_what_an_operator_changed_after_it_was_verified_has_to_be_exported_again(history: History) -> None:
    set_aside(history.conn, 5)
    history.certify()
    assert reasons(history) == ["dead"]
    history.conn.execute("UPDATE outbox.message SET state = 'SKIPPED' WHERE id = 5")
    assert reasons(history) == ["unexported"]
    history.certify()
    assert reasons(history) == []


def test_what_an_operator_commits_after_verification_must_be_published_and_exported(
    history: History,
) -> None:
    history.go_to(500)
    half = insert(history.conn, "t", "h", b"half", state="UNKNOWN", producer_group="g")
    history.conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED' WHERE message_id = %s", [half])
    history.go_to(1_500)
    history.certify()
    assert reasons(history) == ["undecided"]
    history.conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [half])
    assert reasons(history) == ["unpublished", "unexported"]
    history.publish(1)
    assert reasons(history) == ["unexported"]
    history.certify()
    assert reasons(history) == []


@pytest.mark.feature("H-03")
def test_problems_keep_a_range_until_a_later_verification_finds_none(history: History) -> None:
    first, last = bounds(history)
    history.certify(lo=first, hi=last + 1, problems=2)
    assert reasons(history) == ["unverified"]
    history.certify(lo=first, hi=last + 1)
    assert reasons(history) == []
    history.certify(lo=first + 1, hi=first + 2, problems=1)
    assert reasons(history) == ["unverified"]
    history.certify(lo=first + 1, hi=first + 2)
    assert reasons(history) == []


@pytest.mark.parametrize("revoked", [True, False])
def test_a_clock_that_was_set_back_between_two_certificates_changes_nothing(
    history: History, revoked: bool
) -> None:
    first, last = bounds(history)
    lo, hi = (0, (1 << 63) - 1) if revoked else (first, last + 1)
    history.certify(lo=first, hi=last + 1)
    history.certify(lo=lo, hi=hi, warehouse="" if revoked else "the first", problems=1, ago="1 hour")
    assert reasons(history) == ["unverified"]
    history.certify(lo=first, hi=last + 1, ago="2 hours")
    assert reasons(history) == []
    history.certify(lo=last, hi=last + 1, warehouse="another", ago="3 hours")
    assert reasons(history) == ["unverified"], "another one is there now"


@pytest.mark.parametrize("other", ["cluster", "database"])
def test_certificates_of_another_cluster_or_database_count_for_nothing(history: History, other: str) -> None:
    _, last = bounds(history)
    history.certify(hi=last + 1, cluster=int(other == "cluster"), database=int(other == "database"))
    assert reasons(history) == ["other_cluster"]
    assert "--rebase" in look(history).json["partitions"][0]["reasons"][0]["detail"]


def test_certificates_from_before_a_promotion_are_void_even_for_an_interrupted_drop(
    history: History, private_stack: Stack
) -> None:
    first, last = bounds(history)
    history.certify()
    assert reasons(history) == []
    # A drop has taken the range out of sight when the standby takes over.
    removal, range_ = Removal(history.conn, wait=10), ranges.read(history.conn)[0]
    removal.mark(range_)
    removal.detach(range_)
    promote(private_stack)
    history.reconnect()
    ran = outbox("history", "drop", "--older-than", "0s", "--json", OUTBOX_DSN=history.dsn)
    part = ran.json["partitions"][0]
    assert (ran.code, part["outcome"], part["restored"]) == (1, "refused", True)
    [reason] = part["reasons"]
    assert reason["name"] == "other_timeline"
    assert reason["detail"].endswith(": outbox etl backfill --rebase, then outbox etl reconcile")
    assert [history.state(kind) for kind in ("message", "publication", "event")] == ["attached"] * 3
    history.certify(lo=last)
    assert reasons(history) == ["unexported"], "the old ones fill no gap"
    history.certify(lo=first)
    assert reasons(history) == []


@pytest.mark.parametrize(("target", "expected"), [("lake", []), ("files", ["unexported"])])
def test_only_the_certificates_of_the_target_count(history: History, target: str, expected: Any) -> None:
    first, last = bounds(history)
    history.certify("lake", hi=last + 1)
    history.certify("files", hi=first)
    assert reasons(history, "--target", target) == expected


def test_unless_one_is_named_every_target_has_to_have_certified_a_range(history: History) -> None:
    first, last = bounds(history)
    history.certify("lake")
    history.certify("files", hi=last)
    ran = look(history)
    assert (ran.code, reasons(history), ran.json["targets"]) == (1, ["unexported"], ["files", "lake"])
    assert "of 'files'" in ran.json["partitions"][0]["reasons"][0]["detail"]
    assert (reasons(history, "--target", "lake"), look(history, "--target", "lake").code) == ([], 0)
    history.certify("files", lo=first)
    assert reasons(history) == []
    assert "has no certificates" in look(history, "--target", "pond").err


def test_certificates_of_a_warehouse_that_was_at_the_same_place_count_no_more(history: History) -> None:
    first, last = bounds(history)
    history.certify()
    assert reasons(history) == []
    history.certify(lo=last, warehouse="another")
    assert reasons(history) == ["unexported"]
    history.certify(lo=first, warehouse="another")
    assert reasons(history) == []


def test_certificates_taken_back_are_void_whichever_warehouse_they_were_of(
    history: History,
) -> None:
    history.certify()
    history.certify(lo=0, hi=(1 << 63) - 1, problems=1, warehouse="")
    ran = look(history)
    assert reasons(history) == ["unverified"]
    assert (
        ran.json["partitions"][0]["reasons"][0]["detail"]
        == "the certificates of 'lake' were taken back: outbox etl reconcile"
    )
    # The old ones stay taken back when the warehouse is found again.
    _, last = bounds(history)
    history.certify(lo=last)
    assert reasons(history) == ["unverified"]
    history.certify()
    assert reasons(history) == []


def test_a_range_detached_when_its_transactions_were_verified_has_no_certificate(
    history: History,
) -> None:
    history.certify(held="{[1001,5000)}")
    ran = look(history)
    assert (ran.code, reasons(history)) == (1, ["unexported"])
    assert "that saw this partition" in ran.json["partitions"][0]["reasons"][0]["detail"]
    history.certify(held="{[1,999)}")
    assert reasons(history) == ["unexported"]
    history.certify(held="{[1,1001)}")
    assert reasons(history) == []
