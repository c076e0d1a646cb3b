"""A message that is taken with the commit of the one before: applied once, and given back where it cannot be.

The threads are driven by the test, so each schedule is exact: see `outbox/inbox/delivery_threads.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import Capabilities
from psycopg.pq import PipelineStatus, TransactionStatus

from outbox.inbox import ConsumedMessage, ConsumeResult, delivery_threads, round_trips, threads
from outbox.inbox.core.hands import Hands
from outbox.inbox.failures import Failure
from outbox.inbox.plans import COMMITTED
from outbox.inbox.round_trips import begin_and_take, commit_and_take
from tests.support.ahead_stage import TOPIC, Stage
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.locks import see_blocked
from tests.support.waiting import wait_until

UNDECIDED = Failure("its header filter could not decide", "")
SLOW = """
    CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.6) WHERE new.body = '0'; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON applied DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait_at_commit()
"""
WAITED = """
    CREATE TABLE waited (until timestamptz NOT NULL);
    CREATE OR REPLACE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.6) WHERE new.body = '0';
            INSERT INTO waited SELECT clock_timestamp() WHERE new.body = '0'; RETURN NULL; END $$
"""
"""As SLOW, which also notes when it has waited."""
AGAIN = """
    CREATE TABLE bodies (body text); CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF new.body = '0' AND NOT EXISTS (SELECT FROM bodies) THEN RAISE 'again' USING ERRCODE = '40001'; END IF;
        RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER again AFTER INSERT ON applied INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION again()
"""


def parked(stage: Stage) -> list[tuple[int, str, str]]:
    """Return the offsets, states and failures of what is parked."""
    return stage.inbox.conn.execute(
        "SELECT off, state, fingerprint FROM outbox.inbox_parked ORDER BY off"
    ).fetchall()


@pytest.fixture
def stage(inbox: InboxStage) -> Iterator[Stage]:
    """A stage whose connection is closed at the end."""
    stage = Stage(inbox)
    yield stage
    stage.close()


@pytest.mark.feature("S-90", "S-91")
def test_messages_are_taken_with_the_commit_of_the_one_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[str] = []
    backends: set[int] = set()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        backends.add(conn.info.backend_pid)
        return apply(conn, message)

    def watched(*given: object) -> object:
        ahead.append("sent")
        return commit_and_take(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(delivery_threads, "commit_and_take", watched)
    stage.add(*range(9))
    stage.thread(listener).run_once()
    assert stage.inbox.applied("body") == [str(number) for number in range(9)]
    assert len(ahead) == 8
    assert len(backends) == 1, "each of them was run in the transaction that had taken it"
    assert stage.inbox.count("outbox.inbox") == stage.offset == 9
    rows = stage.inbox.conn.execute("SELECT count(*) FROM applied GROUP BY xmin").fetchall()
    assert rows == [(1,)] * 9, "a transaction for each"


@pytest.mark.feature("S-90")
@pytest.mark.parametrize("count", [1, 3], ids=["alone", "with_next_messages"])
def test_a_listener_that_lets_psycopg_remove_prepared_statements_runs_once(stage: Stage, count: int) -> None:
    """Psycopg sends DEALLOCATE ALL when it rolls back to a savepoint, once it has prepared statements of its own."""
    seen: list[bytes | None] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.body)
        for number in range(8):
            conn.execute("SELECT %s::integer", [number])
        with suppress(psycopg.errors.DivisionByZero), conn.transaction():
            conn.execute("SELECT 1 / 0")
        assert conn.execute("SELECT FROM pg_prepared_statements").fetchall() == []
        return apply(conn, message)

    stage.add(*range(count))
    thread = stage.thread(listener)
    thread.session.ends.wait = lambda timeout=None: False  # type: ignore[method-assign]
    thread.run_once()
    assert seen == [b"%d" % number for number in range(count)]
    assert stage.inbox.applied("body") == [str(number) for number in range(count)]
    assert stage.inbox.count("outbox.inbox") == stage.offset == count
    assert stage.inbox.count("outbox.inbox_parked") == 0
    assert not stage.conn.closed, "the next message is taken on the same connection"


@pytest.mark.feature("S-90")
def test_a_next_message_that_no_listener_may_run_is_parked(stage: Stage) -> None:
    """Its header filter could not decide. Its row alone would be committed, and the message would be lost."""
    stage.add(0)
    stage.add(1, failure=UNDECIDED)
    stage.thread().run_once()
    assert stage.inbox.applied("body") == ["0"]
    assert parked(stage) == [(1, "retry", UNDECIDED.fingerprint)]
    assert stage.inbox.count("outbox.inbox") == stage.offset == 2
    assert not stage.conn.closed, "it was not taken with the commit"


@pytest.mark.feature("S-90")
def test_a_message_that_was_taken_is_not_parked_in_that_transaction(stage: Stage) -> None:
    stage.add(0)
    thread = stage.thread()
    conn = thread.session.open()
    key, delivery = stage.take()
    thread.hands.take([(key, replace(delivery, failure=UNDECIDED))])
    [work] = thread.hands.works
    thread._taken = work, begin_and_take(conn, 1, delivery)
    thread.run_once()
    assert stage.inbox.applied("body") == []
    assert parked(stage) == [(0, "retry", UNDECIDED.fingerprint)]
    assert stage.inbox.count("outbox.inbox") == stage.offset == 1


@pytest.mark.feature("S-90")
def test_a_next_message_of_another_day_gets_the_partition_of_its_day_first(stage: Stage) -> None:
    stage.add(0)
    stage.add(1, is_of_new_day=True)
    stage.thread().run_once()
    assert stage.inbox.applied("body") == ["0", "1"]
    assert stage.inbox.count("outbox.inbox") == stage.offset == 2
    assert stage.inbox.count("outbox.inbox_default") == 0


@pytest.mark.feature("S-90")
def test_a_listener_that_begins_another_transaction_is_found_beside_a_next_message(stage: Stage) -> None:
    seen: list[bytes | None] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.body)
        result = apply(conn, message)
        if message.body == b"0":
            conn.execute("COMMIT AND CHAIN")
            apply(conn, message)
        return result

    stage.add(0, 1)
    thread = stage.thread(listener)
    thread.run_once()
    thread.run_once()  # the message that was given back
    assert seen == [b"0", b"1"]
    assert stage.inbox.applied("body") == ["0", "1"], "what it wrote afterwards is taken back"
    assert parked(stage) == [(0, "dead", COMMITTED)]
    assert stage.inbox.count("outbox.inbox") == stage.offset == 2


@pytest.mark.feature("S-90")
def test_a_refused_commit_gives_the_next_message_back(stage: Stage) -> None:
    stage.inbox.conn.execute(AGAIN)
    stage.add(0, 1, 2)
    seen: list[tuple[int, int]] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0" and seen == []:
            seen.append((0, 0))
        elif message.body == b"0" and len(seen) == 1:
            seen.append((stage.running(), stage.inbox.count("outbox.inbox")))
            other.run_once()  # the message that was given back is anybody's
            stage.inbox.conn.execute("INSERT INTO bodies VALUES ('0')")
        return apply(conn, message)

    thread, other = stage.thread(listener), stage.thread()
    thread.session.ends.wait = lambda timeout=None: False  # type: ignore[method-assign]
    thread.run_once()
    assert seen[1] == (1, 0), "the message that was refused runs alone, and nothing is taken"
    assert sorted(stage.inbox.applied("body")) == ["0", "1", "2"]
    assert stage.inbox.applied("body")[2] == "0"
    assert stage.inbox.count("outbox.inbox") == stage.offset == 3


@pytest.mark.feature("S-90", "S-92")
def test_a_locked_row_does_not_delay_the_message_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LOCK_WAIT", 60.0)
    stage.add(0, 1)
    with psycopg.connect(stage.inbox.dsn) as zombie, ThreadPoolExecutor(1) as pool:
        taken = stage.take(), stage.take()
        begin_and_take(zombie, 1, taken[1][1])
        stage.give_back(*taken)
        step = pool.submit(stage.thread().run_once)
        try:
            see_blocked(stage.inbox.conn, stage.conn, step)
            wait_until(lambda: stage.running() == 1, "the first message has ended", seconds=20)
            with stage.work as partitions:
                assert [each.offset for each in partitions.offsets()] == [1]
            assert stage.inbox.applied("body") == ["0"]
        finally:
            zombie.rollback()
        step.result(60)
    assert stage.inbox.applied("body") == ["0", "1"]


@pytest.mark.feature("S-90", "S-92")
def test_a_row_that_stays_locked_is_given_back_and_its_connection_kept(stage: Stage) -> None:
    stage.add(0, 1)
    with psycopg.connect(stage.inbox.dsn) as zombie:
        taken = stage.take(), stage.take()
        begin_and_take(zombie, 1, taken[1][1])
        stage.give_back(*taken)
        thread = stage.thread()
        thread.run_once()
        assert (stage.inbox.applied("body"), stage.running(), stage.offset) == (["0"], 0, 1)
        assert thread.session.conn is stage.conn
        assert stage.work.take(0) == [], "its key waits"
        zombie.rollback()
        stage.add(2)

        def are_applied() -> bool:
            thread.run_once()
            return stage.offset == 3

        wait_until(are_applied, "both are applied", seconds=20)
    assert stage.inbox.applied("body") == ["0", "2", "1"]


@pytest.mark.feature("S-90", "S-94")
@pytest.mark.parametrize("lost", ["partition", "server"])
def test_a_message_taken_ahead_and_not_run_leaves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    stage.add(0, 1)
    thread = stage.thread()
    hands = thread.hands
    finish = hands.finish

    def finishing() -> None:
        finish()
        monkeypatch.setattr(hands, "finish", finish)
        with stage.work as partitions:
            if lost == "partition":
                partitions.close([TOPIC])
            else:
                partitions.restart()

    monkeypatch.setattr(hands, "finish", finishing)
    thread.run_once()
    assert stage.inbox.applied("body") == ["0"]
    assert stage.inbox.count("outbox.inbox") == 1
    assert stage.conn.closed
    stage.assign(1)
    stage.add(1)
    thread.run_once()
    assert stage.inbox.applied("body") == ["0", "1"]


@pytest.mark.feature("S-90")
def test_a_lost_connection_runs_the_next_message_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.add(0, 1)
    thread = stage.thread()

    def lost(*given: object) -> object:
        sent = commit_and_take(*given)  # type: ignore[arg-type]
        stage.inbox.conn.execute("SELECT pg_terminate_backend(%s)", [stage.conn.info.backend_pid])
        monkeypatch.setattr(delivery_threads, "commit_and_take", commit_and_take)
        wait_until(
            lambda: not stage.inbox.count("pg_stat_activity", f"pid = {stage.conn.info.backend_pid}"),
            "it is gone",
        )
        return sent

    monkeypatch.setattr(delivery_threads, "commit_and_take", lost)
    thread.run_once()
    assert stage.inbox.applied("body") == ["0", "1"]
    assert stage.offset == 2


@pytest.mark.feature("S-90")
@pytest.mark.parametrize("changed", ["connection", "days"])
def test_a_row_that_was_taken_ahead_counts_in_its_transaction_only(stage: Stage, changed: str) -> None:
    stage.add(0, 1)
    seen: list[bytes | None] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.body)
        return apply(conn, message)

    thread = stage.thread(listener)
    handle = thread._handle

    def handling(works: Any) -> None:
        if thread._taken is not None and changed == "connection":
            thread.session.drop()
        if thread._taken is not None and changed == "days":
            stage.server.days.clear()  # to make a partition now would commit the row
        handle(works)

    thread._handle = handling  # type: ignore[method-assign]
    thread.run_once()
    assert seen == [b"0", b"1"]
    assert stage.inbox.applied("body") == ["0", "1"]
    assert stage.inbox.count("outbox.inbox") == 2
    assert stage.inbox.count("outbox.inbox_parked") == 0


@pytest.mark.feature("S-90")
@pytest.mark.parametrize("when", ["before the commit", "after the commit", "and replaced later"])
def test_a_thread_that_is_given_up_leaves_its_next_message_to_others(stage: Stage, when: str) -> None:
    stage.add(0, 1)
    thread = stage.thread()
    commit, running = thread._commit, []
    heirs: list[Hands] = []

    def late(conn: Connection, xid: str) -> None:
        if when != "before the commit":
            commit(conn, xid)
        thread.hands.given_up = True
        if when != "and replaced later":
            heirs.append(thread.hands.successor(None))
        if when == "before the commit":
            commit(conn, xid)
        running.append(stage.running())

    thread._commit = late  # type: ignore[method-assign]
    thread.run_once()
    if when == "and replaced later":
        heirs.append(thread.hands.successor(None))
    else:
        assert running == [1], "only the message that is inherited"
    thread.session.drop()
    replacement = stage.thread(hands=heirs[0])
    replacement.run_once()  # the message that was inherited
    replacement.run_once()
    assert stage.inbox.applied("body") == ["0", "1"]
    assert stage.running() == 0
    assert stage.offset == 2


def test_a_refused_commit_leaves_the_connection_outside_the_pipeline(stage: Stage) -> None:
    stage.inbox.conn.execute(AGAIN)
    stage.add(0, 1)
    (_, first), (_, second) = stage.take(), stage.take()
    taken = begin_and_take(stage.conn, 1, first)
    apply(stage.conn, first.message)
    with pytest.raises(psycopg.errors.SerializationFailure):
        commit_and_take(stage.conn, taken.xid, 1, second)
    assert stage.conn.pgconn.pipeline_status == PipelineStatus.OFF
    assert stage.conn.info.transaction_status == TransactionStatus.IDLE
    assert stage.inbox.count("outbox.inbox") == 0
    assert begin_and_take(stage.conn, 1, second).is_new


@pytest.mark.feature("S-90", "S-92")
def test_a_transaction_that_a_slow_commit_has_made_old_is_not_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trips, "LONG_WAIT", 0.3)
    stage.inbox.conn.execute(SLOW)
    stage.inbox.conn.execute(WAITED)
    began: list[datetime] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        began.extend(*conn.execute("SELECT now()").fetchall())
        return apply(conn, message)

    stage.add(0, 1)
    stage.thread(listener).run_once()
    assert stage.inbox.applied("body") == ["0", "1"]
    [(waited,)] = stage.inbox.conn.execute("SELECT until FROM waited").fetchall()
    assert began[0] < waited < began[1], "it began when the commit before it had ended"


@pytest.mark.feature("S-90")
def test_without_pipelines_each_message_is_taken_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capabilities, "has_pipeline", lambda _: False)
    monkeypatch.delattr(delivery_threads, "commit_and_take")
    stage.add(0, 1, 2)
    stage.thread().run_once()
    assert stage.inbox.applied("body") == ["0", "1", "2"]
