"""History is dropped only while the warehouse holds what was certified, as the command that drops finds it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.full_partitions import History
from tests.support.outbox_command import Ran, outbox
from tests.support.plain_inserts import connect
from tests.support.plain_warehouses import PlainIceberg
from tests.support.waiting import wait_until


@pytest.fixture
def history(database: str) -> Iterator[History]:
    """Two full ranges of ids, published."""
    history = History(database)
    history.fill(0)
    history.fill(1)
    history.leave(2)
    history.publish(2)
    yield history
    history.close()


def drop(history: History) -> Ran:
    options = ("--older-than", "0s", "--wait", "10s", "--json")
    return outbox("history", "drop", *options, OUTBOX_DSN=history.dsn)


def outcomes(ran: Ran) -> list[tuple[str, list[str]]]:
    """What became of the two ranges, and why."""
    parts = ran.json["partitions"][:2]
    return [(part["outcome"], [reason["name"] for reason in part["reasons"]]) for part in parts]


STAYS = ("refused", ["unverified"])


@pytest.mark.feature("H-03")
def test_a_range_whose_file_is_gone_stays_and_the_range_beside_it_goes(history: History) -> None:
    lost = history.warehouse.add(1, 10)
    history.warehouse.add(1_001, 10)
    history.certify()
    lost.unlink()
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (1, [STAYS, ("dropped", [])])
    [reason] = ran.json["partitions"][0]["reasons"]
    assert f"the file {lost} is gone: outbox etl reconcile" in reason["detail"]
    assert history.state("message", 0) == "attached"


def test_a_file_that_is_lost_while_its_range_is_detached_brings_the_range_back(history: History) -> None:
    lost = history.warehouse.add(1, 10)
    history.certify()
    with closing(connect(history.dsn)) as reader, ThreadPoolExecutor(1) as pool:
        with reader.transaction():
            # The detach waits for it, behind the first check and before the second.
            reader.execute("SELECT FROM outbox.message LIMIT 1")
            dropping = pool.submit(drop, history)
            wait_until(lambda: history.state("message", 0) == "pending", "the range is being detached")
            lost.unlink()
        ran = dropping.result()
    assert (ran.code, outcomes(ran)) == (1, [STAYS, ("dropped", [])])
    assert ran.json["partitions"][0]["restored"] is True
    assert history.state("message", 0) == "attached"


def test_a_warehouse_that_is_not_on_this_machine_keeps_all_history(history: History) -> None:
    history.certify()
    shutil.rmtree(history.warehouse.root)
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (1, [STAYS, STAYS])


def test_an_older_state_of_the_warehouse_keeps_all_history(history: History, tmp_path: Path) -> None:
    shutil.copytree(history.warehouse.root, tmp_path / "backup")
    history.warehouse.add(1, 10)
    history.certify()
    shutil.rmtree(history.warehouse.root)
    shutil.copytree(tmp_path / "backup", history.warehouse.root)
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (1, [STAYS, STAYS])
    assert "an older state" in ran.json["partitions"][0]["reasons"][0]["detail"]


def test_a_certificate_of_an_older_release_is_worth_nothing_until_the_next(history: History) -> None:
    history.certify()
    history.conn.execute('UPDATE outbox.certificate SET checksum = \'{"sums": {}, "kafka": {}}\'')
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (1, [STAYS, STAYS])
    assert "names no evidence" in ran.json["partitions"][0]["reasons"][0]["detail"]
    history.certify()
    assert drop(history).code == 0


def test_the_newest_certificate_s_evidence_counts_though_its_window_is_another(history: History) -> None:
    history.certify(hi=1 << 40)
    lost = history.warehouse.add(1, 10)
    history.certify(lo=1 << 40, hi=1 << 41)
    lost.unlink()
    assert outcomes(drop(history)) == [STAYS, ("dropped", [])]


def change(action: str) -> Callable[[PlainIceberg, str], None]:
    def roll_back(iceberg: PlainIceberg, name: str) -> None:
        snapshot = iceberg.tables[name].metadata.snapshots[0]
        iceberg.roll_back(name, snapshot.snapshot_id)

    def remove(iceberg: PlainIceberg, name: str) -> None:
        iceberg.remove(name, 3, signed=False)

    return {"rolled back": roll_back, "removed or changed rows": remove}[action]


@pytest.mark.feature("H-03")
@pytest.mark.parametrize("action", ["rolled back", "removed or changed rows"])
@pytest.mark.parametrize("name", ["message_history", "publications", "transaction_events"])
def test_a_table_that_lost_rows_since_it_was_verified_keeps_all_history(
    history: History, tmp_path: Path, name: str, action: str
) -> None:
    iceberg = PlainIceberg(tmp_path / "iceberg")
    iceberg.add(name, 11, 10)
    history.certify(evidence=iceberg.evidence())
    change(action)(iceberg, name)
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (1, [STAYS, STAYS])
    detail = ran.json["partitions"][0]["reasons"][0]["detail"]
    assert name in detail
    assert action in detail


def test_a_warehouse_that_grew_and_was_merged_since_keeps_nothing(history: History, tmp_path: Path) -> None:
    iceberg = PlainIceberg(tmp_path / "iceberg")
    history.certify(evidence=iceberg.evidence())
    iceberg.add("message_history", 11, 10)
    iceberg.remove("message_history", 3, signed=True)
    ran = drop(history)
    assert (ran.code, outcomes(ran)) == (0, [("dropped", [])] * 2)
