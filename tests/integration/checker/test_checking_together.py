"""Several checkers, and checkers that die, stop or come late: each half message is asked about by one at a time."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import psycopg
import pytest

from outbox.checking import Answer, LocalTransactionState
from outbox.checking.claiming import claim
from outbox.checking.finding import groups, settings
from outbox.checking.settling import Reply, expire, settle
from outbox.checking.transaction import SQL, transaction
from outbox.records import MessageView
from tests.support.checked_half_messages import GROUP, CheckStage, Script
from tests.support.plain_inserts import connect
from tests.support.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


LOCKS_OF_OTHERS = """
    SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
"""


@pytest.mark.feature("S-44", "S-56")
def test_checkers_of_a_group_share_the_work_and_ask_once(stage: CheckStage) -> None:
    stage.halves(600)
    askers = [Script(UNKNOWN) for _ in range(3)]
    threads = [threading.Thread(target=stage.check, args=[asker], kwargs={"batch": 20}) for asker in askers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    asked = Counter(id for asker in askers for id in asker.ids)
    assert len(asked) == 600
    assert set(asked.values()) == {1}
    assert stage.one("SELECT count(*) FROM outbox.event WHERE kind = 'check'") == 600
    assert stage.one("SELECT sum(checks) FROM outbox.pending_check") == 600


@pytest.mark.feature("S-44")
def test_what_a_dead_checker_had_claimed_is_asked_about_when_its_lease_has_passed(stage: CheckStage) -> None:
    half = stage.half()
    stage.enqueue()
    with stage.connection() as conn:
        group = transaction(conn, "dead", settings(GROUP)).settings
        assert [view.id for view in transaction(conn, "dead", claim(group, "dead", 10)).views] == [half.id]
    other = Script(True)
    stage.check(other)
    assert other.asked == [], "the lease holds"
    assert stage.due_in(half) == pytest.approx(10, abs=3), "time-out, waiting for a worker, slack"
    stage.make_due()
    stage.check(other)
    assert stage.state(half) == "COMMITTED"


@pytest.mark.parametrize("late", [COMMIT, ROLLBACK, UNKNOWN])
def test_an_answer_is_thrown_away_when_somebody_else_has_claimed(
    stage: CheckStage, late: LocalTransactionState
) -> None:
    half = stage.half()
    stage.enqueue()
    with stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        slow = transaction(conn, "one", claim(group, "one", 10))
        stage.make_due()
        transaction(conn, "two", claim(group, "two", 10))
        settled = transaction(conn, "one", settle(group, [Reply(half.id, slow.claim, 0, Answer(late))]))
    assert settled.late == 1
    assert stage.state(half) == "UNKNOWN"
    assert stage.checks(half) == 0
    assert stage.events(half) == []


def test_settling_twice_counts_once(stage: CheckStage) -> None:
    half = stage.half()
    stage.enqueue()
    with stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        claimed = transaction(conn, "one", claim(group, "one", 10))
        reply = Reply(half.id, claimed.claim, 0, Answer(UNKNOWN))
        assert transaction(conn, "one", settle(group, [reply])).unknown == 1
        assert transaction(conn, "one", settle(group, [reply])).late == 1
    assert stage.checks(half) == 1
    assert len(stage.events(half)) == 1


@pytest.mark.feature("S-58")
def test_while_a_flood_is_asked_about_no_producer_waits_for_the_checker(stage: CheckStage) -> None:
    """All workers hang in their callbacks: the checker has no transaction open and holds no lock meanwhile."""
    stage.halves(500)
    half = stage.half()
    asked, answer = threading.Event(), threading.Event()

    def hang(view: MessageView) -> None:
        if view.id == half.id:
            asked.set()
        answer.wait(120)

    checker = threading.Thread(target=stage.check, args=[Script(hang)], kwargs={"batch": 600})
    stage.group(workers=64, check_timeout="120 s")
    stage.conn.execute(
        "UPDATE outbox.message SET born_at = born_at - interval '1 hour' WHERE id = %s", [half.id]
    )
    checker.start()
    try:
        assert asked.wait(60)
        free = "the checker lets go of every lock while it asks"
        wait_until(lambda: stage.one(LOCKS_OF_OTHERS) == 0, free, seconds=30)
        stage.conn.execute("SET lock_timeout = '5 s'")
        stage.half(age=0)
        assert stage.decide(half, "COMMITTED") == 1
    finally:
        answer.set()
        checker.join(60)
    assert stage.state(half) == "COMMITTED"


def test_no_statement_of_a_checker_waits_for_a_lock(stage: CheckStage) -> None:
    decided, locked = stage.half(), stage.half(age=80 * 3600.0)
    stage.enqueue()
    with connect(stage.dsn) as other, stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        claimed = transaction(conn, "one", claim(group, "one", 10))
        other.execute("BEGIN")
        other.execute("SELECT FROM outbox.message FOR UPDATE")
        other.execute("SELECT FROM outbox.pending_check FOR UPDATE")
        conn.execute("SET statement_timeout = '5s'")
        assert transaction(conn, "one", claim(group, "one", 10)).views == []
        reply = Reply(decided.id, claimed.claim, 0, Answer(COMMIT))
        assert transaction(conn, "one", settle(group, [reply])).late == 1
        assert transaction(conn, "one", expire(group, [locked.id])).ended == ()
        other.execute("ROLLBACK")


def test_a_checker_stopped_inside_a_transaction_does_not_hold_locks_for_long(
    stage: CheckStage,
) -> None:
    half = stage.half()
    stage.enqueue()
    with connect(stage.dsn) as stopped:
        stopped.execute("BEGIN")
        stopped.execute(SQL["begin"].replace("$1", "'x'").encode())
        stopped.execute("SELECT FROM outbox.message WHERE id = %s FOR UPDATE", [half.id])
        # Nothing more comes from it, as if its process had been stopped.
        assert stage.decide(half, "COMMITTED") == 1, "the server ends its session, and the producer goes on"
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            stopped.execute("COMMIT")


def test_one_that_cannot_be_settled_does_not_keep_the_others(stage: CheckStage) -> None:
    halves = [stage.half(biz_id=str(number)) for number in range(5)]
    stage.conn.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.biz_id = '2' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END$$"
    )
    stage.conn.execute(
        "CREATE TRIGGER z BEFORE UPDATE ON outbox.message FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    assert stage.check(Script(True)).decided == 4
    assert [stage.state(half) for half in halves].count("COMMITTED") == 4
    assert stage.state(halves[2]) == "UNKNOWN"
    due = stage.due_in(halves[2])
    assert due is not None
    assert due > 0, "asked about again when its lease has passed"


@pytest.mark.feature("S-56")
def test_groups_with_half_messages_are_found_and_no_others(stage: CheckStage) -> None:
    stage.halves(50, "a")
    stage.halves(1, "b")
    stage.half("decided")
    stage.conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE producer_group = 'decided'")
    stage.conn.execute("INSERT INTO outbox.message (topic, producer_group) VALUES ('t', 'plain')")
    stage.conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('alarmed', 'flood', '')"
    )
    with stage.connection() as conn:
        assert transaction(conn, "x", groups()) == ["a", "alarmed", "b"]


@pytest.mark.feature("S-43", "S-57")
def test_no_message_is_written_by_being_checked(stage: CheckStage) -> None:
    stage.halves(400)

    def pages() -> int:
        return int(
            stage.one(
                "SELECT sum(pg_table_size(i.inhrelid)) FROM pg_inherits i "
                "WHERE i.inhparent = 'outbox.message'::regclass"
            )
        )

    stage.check(Script(UNKNOWN))
    before = pages()
    written = (
        "SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE starts_with(relname, 'message_p')"
    )
    for _ in range(13):
        stage.make_due()
        stage.check(Script(UNKNOWN))
    assert stage.one("SELECT min(checks) FROM outbox.pending_check") == 14
    assert pages() == before
    stage.conn.execute("SELECT pg_stat_force_next_flush()")
    assert stage.one(written) in (0, None)


def test_roles_of_producer_and_checker_suffice(stage: CheckStage) -> None:
    commit, later, exhausted = stage.half(biz_id="c"), stage.half(biz_id="u"), stage.half(age=80 * 3600.0)
    stage.group(policy="EXHAUSTED")
    login = "checking_" + stage.dsn.rpartition("/")[2].partition("?")[0][-12:]
    stage.conn.execute(f"CREATE ROLE {login}".encode())
    try:
        stage.conn.execute(f"GRANT outbox_producer, outbox_checker TO {login}".encode())

        def connection() -> psycopg.Connection[object]:
            conn = connect(stage.dsn)
            conn.execute(f"SET ROLE {login}".encode())
            return conn

        asker = Script(lambda view: True if view.biz_id == "c" else None)
        made = stage.round(asker)
        made.run_once(connection)
        made.stop()
    finally:
        stage.conn.execute(f"DROP OWNED BY {login}".encode())
        stage.conn.execute(f"DROP ROLE {login}".encode())
    assert (stage.state(commit), stage.state(later), stage.state(exhausted)) == (
        "COMMITTED",
        "UNKNOWN",
        "EXHAUSTED",
    )
    assert stage.checks(later) == 1
    assert "exhausted" in stage.alarms()


def test_a_huge_body_is_read_with_few_others(stage: CheckStage) -> None:
    body = b"x" * 900_000
    big = [stage.half(body=body) for _ in range(25)]
    stage.enqueue()
    with stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        claimed = transaction(conn, "one", claim(group, "one", 100))
    assert 10 < len(claimed.views) < 20, "16 MiB of bodies"
    assert claimed.more
    assert claimed.views[0].body == body
    assert [view.id for view in claimed.views] == [half.id for half in big[: len(claimed.views)]]


def test_the_view_tells_all_that_was_written(stage: CheckStage) -> None:
    stage.half(
        key="k1",
        body=None,
        headers='{"h": "1", "n": null}',
        order_key=b"o-1",
        tags=["a", "b"],
        index_keys=["i"],
        transaction_id="tx",
        checker="payment",
        biz_type="pay",
        biz_id="p-7",
        deliver_at="9999-12-30 UTC",
        traceparent=TRACE,
    )
    asker = Script(None)
    stage.check(asker)
    (view,) = asker.asked
    assert (view.key, view.body, view.headers) == (b"k1", None, {"h": "1", "n": None})
    assert (view.order_key, view.tags, view.index_keys) == (b"o-1", ("a", "b"), ("i",))
    assert (view.transaction_id, view.checker, view.biz_type, view.biz_id) == ("tx", "payment", "pay", "p-7")
    assert (view.traceparent, view.producer_group, view.checks) == (TRACE, GROUP, 0)
    assert view.deliver_at is not None
    assert view.deliver_at.year == 9999
    stage.conn.execute("UPDATE outbox.message SET deliver_at = NULL")
    stage.make_due()
    stage.check(asker)
    assert (asker.asked[1].checks, asker.asked[1].deliver_at) == (1, None)


@pytest.mark.feature("S-40")
def test_a_half_message_that_is_committed_late_is_met_all_the_same(stage: CheckStage) -> None:
    made = stage.round(Script(True))
    with connect(stage.dsn) as slow:
        slow.execute("BEGIN")
        slow.execute(
            "INSERT INTO outbox.message (topic, state, producer_group, born_at) "
            "VALUES ('t', 'UNKNOWN', %s, clock_timestamp() - interval '20 seconds')",
            [GROUP],
        )
        stage.half()
        made.run_once(stage.connection)
        slow.execute("COMMIT")
    undecided = "SELECT count(*) FROM outbox.message WHERE state = 'UNKNOWN'"

    def found() -> bool:
        made.step(stage.connection)
        return bool(stage.one(undecided) == 0)

    wait_until(found, "the whole walk comes round to it")
    made.stop()


@pytest.mark.feature("S-51")
def test_the_policy_waits_for_an_answer_that_is_on_its_way(stage: CheckStage) -> None:
    half = stage.half()
    stage.enqueue()
    with stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        claimed = transaction(conn, "one", claim(group, "one", 10))
        stage.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '100 hours'")
        assert stage.check(None).expired == 0, "the walk leaves it"
        assert transaction(conn, "two", expire(group, [half.id])).ended == (), "and so does the policy"
        reply = Reply(half.id, claimed.claim, 0, Answer(COMMIT))
        assert transaction(conn, "one", settle(group, [reply])).decided == 1
    assert stage.state(half) == "COMMITTED"


@pytest.mark.feature("S-51")
def test_fewer_checks_than_were_made_end_no_check_that_is_on_its_way(stage: CheckStage) -> None:
    """An operator lowers max_checks while somebody is asked for the second time: the answer counts, not the policy."""
    half = stage.half()
    stage.check(Script(UNKNOWN))
    stage.make_due()
    with stage.connection() as conn:
        group = transaction(conn, "one", settings(GROUP)).settings
        claimed = transaction(conn, "one", claim(group, "one", 10))
        assert [view.id for view in claimed.views] == [half.id]
        fewer = replace(group, max_checks=1)
        assert transaction(conn, "two", expire(fewer, [half.id])).ended == (), "somebody is asking"
        reply = Reply(half.id, claimed.claim, 0, Answer(COMMIT))
        assert transaction(conn, "one", settle(fewer, [reply])).decided == 1
    assert stage.state(half) == "COMMITTED"
