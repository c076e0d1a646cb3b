"""What is asked about, when, and what becomes of the answers: a checker's rounds against PostgreSQL."""

from __future__ import annotations

import pytest

from outbox.checking import Answer, LocalTransactionState
from outbox.checking.alarms import STANDS
from tests.support.checked_half_messages import CheckStage, Script
from tests.support.plain_inserts import connect

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)


@pytest.mark.feature("S-40", "S-45", "S-87")
@pytest.mark.parametrize(("answer", "state"), [(True, "COMMITTED"), (False, "ROLLED_BACK")])
def test_the_answer_decides_and_the_audit_tells_who_was_asked(
    stage: CheckStage, answer: bool, state: str
) -> None:
    half = stage.half()
    done = stage.check(Script(answer), name="checker:payments@here:1")
    assert (done.enqueued, done.claimed, done.decided) == (1, 1, 1)
    assert stage.state(half) == state
    assert stage.checks(half) is None, "nothing is left of it"
    check, decision = stage.events(half)
    verdict = "COMMIT" if answer else "ROLLBACK"
    assert (check.kind, check.answer) == ("check", verdict)
    assert (decision.kind, decision.to_state, decision.reason) == (
        "transition",
        state,
        f"check 1 answered {verdict}",
    )
    assert check.actor.startswith("checker:payments@here:1 (")
    assert decision.actor == check.actor


def test_a_remark_goes_with_the_decision(stage: CheckStage) -> None:
    half = stage.half()
    stage.check(Script(Answer(COMMIT, "p-7 is paid")))
    assert stage.one("SELECT remark FROM outbox.message WHERE id = %s", half.id) == (
        "check 1 answered COMMIT: p-7 is paid"
    )


@pytest.mark.feature("S-40")
def test_a_half_message_is_not_asked_about_before_its_first_delay(stage: CheckStage) -> None:
    half = stage.half(age=5.0)
    asker = Script(True)
    assert stage.check(asker).enqueued == 0
    assert asker.asked == []
    assert stage.state(half) == "UNKNOWN"


@pytest.mark.feature("S-40")
def test_a_message_brings_its_own_first_delay(stage: CheckStage) -> None:
    short = stage.half(age=2.0, check_after="1 second")
    long = stage.half(age=60.0, check_after="1 hour")
    asker = Script(True)
    stage.check(asker)
    assert asker.ids == [short.id]
    assert stage.due_in(long) == pytest.approx(3540, abs=30)


@pytest.mark.feature("S-40")
def test_a_first_delay_beyond_measure_stops_nobody(stage: CheckStage) -> None:
    # The table refuses them; one that was written before its trigger was there stops nobody either.
    stage.conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER message_admission")
    stage.half(check_after="200000 years", lane=0)
    stage.half(check_after="-200000 years", lane=0)
    stage.conn.execute("ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_admission")
    plain = stage.half()
    stage.check(Script(True))
    assert stage.state(plain) == "COMMITTED"


@pytest.mark.feature("S-41")
def test_checks_become_rarer_from_30_seconds_to_10_minutes(stage: CheckStage) -> None:
    half = stage.half()
    pauses = []
    for count in range(1, 15):
        stage.check(Script(UNKNOWN))
        assert stage.checks(half) == count
        pauses.append(stage.due_in(half))
        stage.make_due()
    assert pauses == pytest.approx([30, 60, 120, 240, 480] + [600] * 9, abs=15)
    assert [event.kind for event in stage.events(half)] == ["check"] * 14


@pytest.mark.feature("S-52", "S-53")
@pytest.mark.parametrize(("policy", "state"), [("ROLLBACK", "ROLLED_BACK"), ("EXHAUSTED", "EXHAUSTED")])
def test_the_last_check_leaves_it_to_the_policy(stage: CheckStage, policy: str, state: str) -> None:
    stage.group(policy=policy)
    half = stage.half()
    for _ in range(14):
        stage.check(Script(UNKNOWN))
        stage.make_due()
    assert stage.state(half) == "UNKNOWN"
    done = stage.check(Script(UNKNOWN))
    assert (done.unknown, done.expired) == (1, 1)
    assert stage.state(half) == state
    events = stage.events(half)
    assert [event.kind for event in events] == ["check"] * 15 + ["transition"]
    assert events[-1].reason == "undecided after 15 checks: the group's policy"
    assert set(stage.alarms()) == {"exhausted" if policy == "EXHAUSTED" else "rolled_back"}
    assert stage.checks(half) is None


@pytest.mark.feature("S-51")
def test_the_last_pause_ends_with_the_age(stage: CheckStage) -> None:
    half = stage.half(age=72 * 3600.0 - 20)
    stage.check(Script(UNKNOWN))
    assert stage.due_in(half) == pytest.approx(15, abs=6)


@pytest.mark.feature("S-51")
def test_the_alarm_ends_when_the_operator_has_decided(stage: CheckStage) -> None:
    stage.group(policy="EXHAUSTED", max_checks=1)
    half = stage.half()
    stage.check(Script(UNKNOWN))
    assert "1 half message waits for an operator" in stage.alarms()["exhausted"]
    stage.conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE id = %s", [half.id])
    stage.check(Script(UNKNOWN))
    assert stage.alarms() == {}


@pytest.mark.feature("S-53")
def test_a_rollback_by_policy_is_an_alarm_for_ten_minutes_whoever_scans(stage: CheckStage) -> None:
    stage.group(max_checks=1)
    checker = stage.round(Script(UNKNOWN))
    for expected in ("1 half message was", "2 half messages were"):
        stage.half()
        checker.run_once(stage.connection)
        assert f"{expected} rolled back by the group's policy" in stage.alarms()["rolled_back"]
        checker.run_once(stage.connection)
    checker.stop()
    stage.check(Script(UNKNOWN))
    assert "rolled_back" in stage.alarms(), "a checker that has just started clears nothing that is new"
    stage.conn.execute("UPDATE outbox.alarm SET seen_at = seen_at - %s * interval '1 s'", [STANDS + 1])
    stage.check(Script(UNKNOWN))
    assert stage.alarms() == {}


@pytest.mark.feature("S-53")
def test_a_rollback_that_was_the_reply_is_no_alarm(stage: CheckStage) -> None:
    half = stage.half()
    stage.check(Script(ROLLBACK))
    assert stage.state(half) == "ROLLED_BACK"
    assert stage.alarms() == {}


@pytest.mark.feature("S-53")
def test_a_commit_after_the_policy_finds_nothing_to_decide(stage: CheckStage) -> None:
    stage.group(max_checks=1)
    half = stage.half()
    stage.check(Script(UNKNOWN))
    assert stage.decide(half, "COMMITTED") == 0
    assert stage.state(half) == "ROLLED_BACK"


@pytest.mark.feature("S-42")
def test_a_locked_half_message_is_postponed_and_not_counted(stage: CheckStage) -> None:
    half = stage.half()
    asker = Script(False)
    with connect(stage.dsn) as local, local.transaction():
        local.execute("SELECT FROM outbox.message WHERE id = %s FOR UPDATE", [half.id])
        for _ in range(20):
            with stage.postponing(half, 1):
                assert stage.check(asker).locked == 1
            stage.make_due()
    assert asker.asked == []
    assert stage.checks(half) == 0
    assert stage.events(half) == []
    stage.check(asker)
    assert stage.state(half) == "ROLLED_BACK"


@pytest.mark.feature("S-42")
@pytest.mark.parametrize("over", ["age", "checks"])
def test_a_locked_half_message_is_never_left_to_the_policy(stage: CheckStage, over: str) -> None:
    half = stage.half(age=80 * 3600.0 if over == "age" else 10.0)
    if over == "checks":
        stage.check(Script(UNKNOWN))
        stage.conn.execute("UPDATE outbox.pending_check SET checks = 15, due_at = statement_timestamp()")
    with connect(stage.dsn) as local, local.transaction():
        local.execute("SELECT FROM outbox.message WHERE id = %s FOR NO KEY UPDATE", [half.id])
        assert stage.check(Script(False)).expired == 0
        local.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE id = %s", [half.id])
    stage.make_due()
    stage.check(Script(False))
    assert stage.state(half) == "COMMITTED"


@pytest.mark.feature("S-42")
@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_an_answer_is_not_used_while_a_local_transaction_runs(
    stage: CheckStage, answer: LocalTransactionState
) -> None:
    half = stage.half()
    with connect(stage.dsn) as local:

        def begin_late(_: object) -> LocalTransactionState:
            local.execute("BEGIN")
            local.execute("SELECT FROM outbox.message WHERE id = %s FOR UPDATE", [half.id])
            return answer

        with stage.postponing(half, 1):
            done = stage.check(Script(begin_late))
        assert (done.locked, done.decided) == (1, 0)
        assert stage.checks(half) == 0
        local.execute("ROLLBACK")
    stage.make_due()
    stage.check(Script(ROLLBACK))
    assert stage.state(half) == "ROLLED_BACK"


@pytest.mark.feature("S-45")
@pytest.mark.parametrize("answer", [COMMIT, UNKNOWN])
def test_an_answer_never_overrides_a_decision(stage: CheckStage, answer: LocalTransactionState) -> None:
    half = stage.half()

    def too_late(_: object) -> LocalTransactionState:
        stage.decide(half, "ROLLED_BACK")
        return answer

    stage.check(Script(too_late))
    assert stage.state(half) == "ROLLED_BACK"
    assert [(event.kind, event.answer) for event in stage.events(half)] == [
        ("transition", None),
        ("check", str(answer)),
    ]
    assert stage.checks(half) is None


def test_a_half_message_that_was_decided_is_not_asked_about(stage: CheckStage) -> None:
    half = stage.half()
    stage.check(Script(UNKNOWN))
    stage.decide(half, "COMMITTED")
    stage.make_due()
    asker = Script(False)
    stage.check(asker)
    assert asker.asked == []
    assert stage.checks(half) is None


@pytest.mark.feature("S-47", "S-48")
def test_an_exception_and_a_late_answer_are_unknown_and_count(stage: CheckStage) -> None:
    stage.group(check_timeout="1 second")
    raises, hangs = stage.half(biz_id="raises"), stage.half(biz_id="hangs")
    import threading

    done = threading.Event()

    def say(view: object) -> bool:
        if getattr(view, "biz_id", "") == "raises":
            raise RuntimeError("no such payment")
        return done.wait(60)

    stage.check(Script(say))
    done.set()
    assert stage.checks(raises) == stage.checks(hangs) == 1
    assert stage.events(raises)[0].answer == "UNKNOWN"
    assert stage.events(raises)[0].reason == (
        "checkLocalTransactionState exception: RuntimeError: no such payment"
    )
    assert stage.events(hangs)[0].reason == "check time-out: no answer within 1 s"
    assert (stage.state(raises), stage.state(hangs)) == ("UNKNOWN", "UNKNOWN")


@pytest.mark.feature("S-48")
@pytest.mark.parametrize("garbage", [None, 1, "yes", object(), Answer("MAYBE", None)])  # type: ignore[arg-type]
def test_garbage_is_unknown_and_counts(stage: CheckStage, garbage: object) -> None:
    half = stage.half()
    stage.check(Script(lambda _: garbage))
    assert stage.checks(half) == 1
    assert stage.state(half) == "UNKNOWN"


@pytest.mark.feature("S-48", "S-52")
def test_answers_that_are_not_states_lead_to_no_policy_and_raise_an_alarm(stage: CheckStage) -> None:
    stage.group(max_checks=5)
    half, round = stage.half(), stage.round(Script("paid"))
    try:
        for _ in range(5):
            round.run_once(stage.connection)
            stage.make_due()
        assert "expected COMMIT, ROLLBACK or UNKNOWN" in stage.alarms()["failing"]
    finally:
        round.stop()
    assert stage.state(half) == "EXHAUSTED", "the business may have been paid for"
    assert not any("paid" in str(event.reason) for event in stage.events(half))
