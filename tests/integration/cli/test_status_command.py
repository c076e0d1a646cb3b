"""`outbox status` tells the truth about what is committed and not yet published, at a cost that does not grow."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from functools import partial
from typing import IO, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox_relay.database import connections
from outbox_relay.operations.status import STATEMENTS, Status, look
from outbox_relay.publisher.lease import read_floors
from tests.support.held_keys import hold_key, write_key
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import Connection, decide, insert, insert_numbered, wait_published
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

TRUTH = """
    SELECT count(*) FILTER (WHERE m.deliver_at IS NULL OR m.deliver_at <= clock_timestamp()),
           extract(epoch FROM clock_timestamp() - min(coalesce(m.decided_at, m.born_at)))::float8
    FROM outbox.message m
    WHERE m.state = 'COMMITTED' AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
        AND NOT EXISTS (SELECT FROM outbox.publication b WHERE m.position = ANY (b.positions))
"""


def status(database: str) -> Status:
    with connections.connect(database) as conn:
        return look(conn)


def backlog(database: str) -> int:
    return status(database).total.backlog


def test_what_is_committed_counts_and_nothing_else(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert_numbered(conn, "orders", 10)
    assert backlog(database) == 10
    record(conn, positions(conn), seen=snapshot(conn), batch=1)
    assert backlog(database) == 0
    insert(conn, "orders", "k", "b")
    half = insert(conn, "orders", "k", "half", state="UNKNOWN", producer_group="g")
    insert(conn, "orders", "k", "lost", state="UNKNOWN", producer_group="g")
    with psycopg.connect(database) as open_:
        insert(open_, "orders", "k", "uncommitted")
        assert backlog(database) == 1
        open_.rollback()
    decide(conn, half, "COMMITTED")
    assert backlog(database) == 2


def test_a_late_commit_counts_although_newer_messages_are_published(database: str, conn: Connection) -> None:
    own_lanes(conn)
    with psycopg.connect(database) as late:
        insert(late, "orders", "late", "b")
        insert_numbered(conn, "orders", 5)
        record(conn, positions(conn), seen=snapshot(conn), batch=1)
        assert backlog(database) == 0
        late.commit()
    assert backlog(database) == 1


def test_a_backlog_that_is_taken_page_by_page_shrinks_by_its_pages(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert(conn, "orders", "first", "b")
    base = snapshot(conn)
    record(conn, positions(conn), seen=base, batch=1)
    insert_numbered(conn, "orders", 100)
    todo, current = positions(conn)[1:], snapshot(conn)
    for page in range(4):
        record(
            conn,
            todo[page * 25 : page * 25 + 25],
            seen=current,
            batch=2 + page,
            base=base,
            after=todo[page * 25 + 24],
        )
        insert(conn, "orders", "meanwhile", "b")
        assert backlog(database) == 75 - page * 25 + page + 1


def test_lanes_without_any_progress_have_everything_that_has_no_publication(
    database: str, conn: Connection
) -> None:
    insert_numbered(conn, "orders", 30)
    record(conn, positions(conn)[:10], seen=snapshot(conn), batch=1)
    assert backlog(database) == 20


def test_progress_of_another_cluster_means_nothing(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert_numbered(conn, "orders", 10)
    record(conn, positions(conn)[:5], seen=snapshot(conn), batch=1)
    assert backlog(database) == 0
    conn.execute("UPDATE outbox.lane SET system_identifier = 42")
    assert backlog(database) == 5


def test_waiting_and_undecided_messages_are_counted_apart(database: str, conn: Connection) -> None:
    own_lanes(conn)
    hold_key(conn, write_key(conn, "orders", "k"))
    for _ in range(2):
        insert(conn, "orders", "k", "b", deliver_at="2100-01-01")
    insert(conn, "orders", "k", "b", deliver_at="2020-01-01")  # due long ago: to be published
    for group in ("a", "a", "b"):
        insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group=group)
    found = succeed("status", "--json", OUTBOX_DSN=database).json
    assert found["backlog"] == 1
    assert {one["reason"]: one["messages"] for one in found["waiting"]} == {"delayed": 2}
    assert [(one["holds"], one["waiting"]) for one in found["holds"]] == [(1, 1)]
    assert {(one["state"], one["producer_group"]): one["messages"] for one in found["unsettled"]} == {
        ("UNKNOWN", "a"): 2,
        ("UNKNOWN", "b"): 1,
    }
    shown = succeed("status", OUTBOX_DSN=database).out
    for line in (
        "delayed     2 messages, the next due in",
        "held        1 key, 1 message behind",
        "3 half messages undecided",
    ):
        assert line in shown


@pytest.mark.feature("S-51")
def test_half_messages_are_counted_per_group_and_those_for_operators_come_first(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    for group in ("calm", "late", "late", "left"):
        insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group=group)
    conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED' WHERE producer_group = 'left'")
    conn.execute("UPDATE outbox.message SET born_at = '2026-01-01' WHERE producer_group = 'late'")
    found = succeed("status", "--json", OUTBOX_DSN=database).json
    assert {(one["state"], one["producer_group"]): one["overdue"] for one in found["unsettled"]} == {
        ("UNKNOWN", "calm"): 0,
        ("UNKNOWN", "late"): 2,
        ("EXHAUSTED", "left"): 0,
    }
    assert found["alarms"] == []
    shown = succeed("status", OUTBOX_DSN=database).out
    assert "3 half messages undecided, 2 of them overdue" in shown
    assert "1 half message left to an operator" in shown
    table = [line.split()[0] for line in shown.splitlines() if line.startswith(("calm", "late", "left"))]
    assert table == ["left", "late", "calm"]
    assert (
        "no checker asks about 2 overdue half messages (outbox tx ls --overdue): outbox checker run" in shown
    )
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('late', 'no_checker', 'nobody asks')"
    )
    shown = succeed("status", OUTBOX_DSN=database).out
    first = shown.splitlines()[:2]
    assert first[0].startswith("PROBLEM: alarm no_checker, group late, since 20")
    assert first[0].endswith(": nobody asks: outbox group show late")
    assert first[1] == "PROBLEM: 1 message EXHAUSTED: left to an operator: outbox tx ls --state EXHAUSTED"


@pytest.mark.feature("S-98")
def test_backlog_and_age_equal_the_truth_whatever_happened(database: str, conn: Connection) -> None:
    """Random histories of inserts, late commits, rollbacks, decisions and published batches."""
    luck = random.Random(20261121)
    own_lanes(conn)
    open_: list[Connection] = []
    halves: list[str] = []
    batch = 0
    for step in range(150):
        match luck.choice(("insert", "begin", "end", "half", "decide", "publish")):
            case "insert":
                insert_numbered(conn, luck.choice(("orders", "parcels")), luck.randint(1, 5), start=step)
            case "begin" if len(open_) < 4:
                open_.append(psycopg.connect(database))
                insert(open_[-1], "orders", f"late{step}", "b")
            case "end" if open_:
                writer = open_.pop(luck.randrange(len(open_)))
                luck.choice((writer.commit, writer.rollback))()
                writer.close()
            case "half":
                halves.append(insert(conn, "orders", "h", "b", state="UNKNOWN", producer_group="g"))
            case "decide" if halves:
                decide(conn, halves.pop(0), luck.choice(("COMMITTED", "ROLLED_BACK")))
            case "publish":
                todo = positions(
                    conn,
                    "state = 'COMMITTED' AND NOT EXISTS "
                    "(SELECT FROM outbox.publication b WHERE position = ANY (b.positions))",
                )
                if todo:
                    batch += 1
                    record(conn, todo, seen=snapshot(conn), batch=batch)
        if step % 10 == 0:
            row = conn.execute(TRUTH).fetchone()
            assert row is not None
            found = status(database)
            assert found.total.backlog == row[0]
            assert sum(share.backlog for share in found.topics.values()) == row[0]
            assert sum(lane.share.backlog for lane in found.lanes) == row[0]
            if row[0]:
                assert found.total.oldest == pytest.approx(row[1], abs=1)
    for writer in open_:
        writer.close()


@pytest.mark.feature("S-98")
def test_status_beside_the_real_relay(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    insert_numbered(conn, topic, 20_000)
    before = status(database)
    assert before.total.backlog == 20_000
    assert {lane.state for lane in before.lanes} == {"no owner"}
    shown = succeed("status", OUTBOX_DSN=database).out
    assert shown.startswith("PROBLEM: no relay runs, and 20,000 messages to publish: outbox relay run\n")
    with RelayProcess(database, bootstrap_servers) as relay:
        wait_published(conn)
        after = status(database)
        assert after.total.backlog == 0
        assert after.total.oldest is None
        assert after.total.published_per_second == 2000
        assert after.topics[topic].published_per_second == pytest.approx(2000)
        assert {lane.state for lane in after.lanes} == {"running"}
        assert all(lane.lease is not None and 0 < lane.lease <= 10 for lane in after.lanes)
        rates = [lane.share.published_per_second for lane in after.lanes]
        assert sum(rates) == pytest.approx(2000)
        counted = dict(
            conn.execute("SELECT lane, count(*) / 10.0 FROM outbox.message GROUP BY lane").fetchall()
        )
        for lane, rate in enumerate(rates):
            assert rate == pytest.approx(float(counted.get(lane, 0)), abs=200), (
                "a sample of 2,000 is this good"
            )
        relay.stop()
    insert_numbered(conn, topic, 7)
    assert backlog(database) == 7
    assert {lane.state for lane in status(database).lanes} == {"no owner"}


def plan(conn: Connection, statement: str, values: dict[str, Any]) -> tuple[str, int]:
    """The plan of a statement as text, and the blocks it touched."""
    with conn.transaction():
        conn.execute(STATEMENTS["settings"])
        conn.execute(STATEMENTS["prefer_indexes"])
        (found,) = conn.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values
        ).fetchone() or ([],)
        root = found[0]["Plan"]
    return json.dumps(found), root["Shared Hit Blocks"] + root["Shared Read Blocks"]


def beyond_floor(conn: Connection) -> dict[str, Any]:
    """What the statements about what is beyond the floor bind."""
    floor = read_floors(conn)[0]
    return {
        "lanes": list(range(8)),
        "epoch": floor.epoch,
        "xmin": str(floor.snapshot.xmin),
        "xmax": str(floor.snapshot.xmax),
        "xip": floor.snapshot.xip_array,
        "partial": floor.is_partial,
        "before": None,
        "most": None,
    }


@pytest.mark.parametrize("partitions", [1, 30])
def test_only_publications_beyond_the_floor_are_read(
    database: str, conn: Connection, partitions: int
) -> None:
    """A relay states with each publication that some messages beyond its floor are published."""
    own_lanes(conn)
    for _ in range(partitions - 3):
        conn.execute("SELECT outbox.add_partition(1000)")
    insert_numbered(conn, "orders", 100_000)
    found, before = positions(conn), snapshot(conn)
    for batch in range(1_000):
        record(conn, found[batch * 100 : batch * 100 + 100], seen=before, batch=batch + 1, is_partial=True)
    assert backlog(database) == 0  # the floor is older than the epoch
    insert_numbered(conn, "orders", 110)
    found, ended = positions(conn), snapshot(conn).split(":")[1]
    seen = f"{ended}:{ended}:"  # what runs in other databases of this server is not of this one
    record(conn, found[100_000:100_050], seen=seen, batch=1_001, is_partial=True)
    insert_numbered(conn, "orders", 10)
    record(conn, positions(conn)[-10:-5], seen=seen, batch=1_002, is_partial=True)
    values = beyond_floor(conn)
    _, blocks = plan(conn, STATEMENTS["before_floor"], values)
    assert blocks < 10 * partitions + 20
    text, blocks = plan(conn, STATEMENTS["backlog"], values | {"before": 1_000})
    assert "(batch > " in text.replace("\\", "")
    assert "Seq Scan" not in text
    assert blocks < 30 * partitions + 200
    assert backlog(database) == 5  # what the floor sees is published, or waits


@pytest.mark.parametrize("partitions", [1, 30])
def test_the_backlog_is_found_by_the_finders_index_however_much_is_published(
    database: str, conn: Connection, partitions: int
) -> None:
    own_lanes(conn)
    for _ in range(partitions - 3):
        conn.execute("SELECT outbox.add_partition(1000)")
    insert_numbered(conn, "orders", 100_000)
    for batch in range(20):
        record(
            conn, positions(conn)[batch * 5000 : batch * 5000 + 5000], seen=snapshot(conn), batch=batch + 1
        )
    insert_numbered(conn, "orders", 10)
    text, blocks = plan(conn, STATEMENTS["backlog"], beyond_floor(conn))
    assert "_xid_lane_hashtext_idx" in text
    assert "Seq Scan" not in text
    assert "_pkey" not in text.replace("waiting_pkey", "")
    assert blocks < 300
    text, blocks = plan(conn, STATEMENTS["published"], {"window": 10.0})
    assert blocks < 100_000
    assert backlog(database) == 10


def test_the_reader_role_may_look(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert_numbered(conn, "orders", 5)
    record(conn, positions(conn), seen=snapshot(conn), batch=1)
    insert_numbered(conn, "orders", 3)
    reader = make_conninfo(database, options="-c role=outbox_reader")
    assert succeed("status", "--json", OUTBOX_DSN=reader).json["backlog"] == 3


def test_topics_are_listed_by_backlog(database: str, conn: Connection) -> None:
    own_lanes(conn)
    for topic, count in (("few", 1), ("many", 9), ("some", 5)):
        insert_numbered(conn, topic, count)
    found = succeed("status", "--json", OUTBOX_DSN=database).json
    assert [(one["topic"], one["backlog"]) for one in found["topics"]] == [
        ("many", 9),
        ("some", 5),
        ("few", 1),
    ]
    shown = [line.split()[:2] for line in succeed("status", OUTBOX_DSN=database).out.splitlines()]
    assert shown.index(["many", "9"]) + 1 == shown.index(["some", "5"])


def next_is(lines: IO[str], backlog: int) -> bool:
    return bool(json.loads(lines.readline())["backlog"] == backlog)


def test_watch_prints_a_line_of_json_each_time_and_ends_on_ctrl_c(database: str, conn: Connection) -> None:
    own_lanes(conn)
    command = [sys.executable, "-m", "outbox_relay", "status", "--json", "--watch", "0.1", "--dsn", database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout
        assert lines is not None
        assert json.loads(lines.readline())["backlog"] == 0
        insert(conn, "orders", "k", "b")
        wait_until(partial(next_is, lines, 1), "a later look sees it")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_sizes_of_batches_are_known_without_reading_them(database: str, conn: Connection) -> None:
    insert_numbered(conn, "orders", 6000)
    own_lanes(conn)
    done = 0
    for batch, size in enumerate((1, 2, 3, 12, 13, 14, 15, 100, 250, 251, 1000, 4000)):
        record(conn, positions(conn)[done : done + size], seen=snapshot(conn), batch=batch)
        done += size
    sizes = conn.execute(
        "SELECT (pg_column_size(positions) - 20) / 8, cardinality(positions) FROM outbox.publication ORDER BY batch"
    ).fetchall()
    assert all(computed == real for computed, real in sizes), sizes
    assert status(database).total.published_per_second == done / 10
