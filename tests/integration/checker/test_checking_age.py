"""What becomes of half messages past their group's age: asked first, and rolled back by nobody's silence.

Schedules: the checker was away for longer than the age; the half message became visible only past it (a long or a
prepared transaction); the callback fails while the age passes; no checker of the group exists, or none has that
listener. Crashes between any two steps are those of `outbox.checking.settling`: the countdown is in the rows.
"""

from __future__ import annotations

import pytest

from outbox.checking import LocalTransactionState, NoCheckerError
from outbox.checking.group_settings import GRACE
from outbox.records import MessageView
from tests.support.checked_half_messages import CheckStage, Script
from tests.support.plain_inserts import connect

UNKNOWN = LocalTransactionState.UNKNOWN
OLD = 72 * 3600.0 + 60
POLICIES = pytest.mark.parametrize(
    ("policy", "state"), [("ROLLBACK", "ROLLED_BACK"), ("EXHAUSTED", "EXHAUSTED")]
)


def raising(_: MessageView) -> None:
    raise RuntimeError("the bank is away")


def unregistered(_: MessageView) -> None:
    raise NoCheckerError("nobody is registered for checker 'payment'")


@pytest.mark.feature("S-51", "S-53")
def test_after_an_absence_of_the_checker_everybody_is_asked_first(stage: CheckStage) -> None:
    halves = [stage.half(age=OLD, biz_id=str(number)) for number in range(20)]
    done = stage.check(Script(True))
    assert (done.decided, done.expired) == (20, 0)
    assert {stage.state(half) for half in halves} == {"COMMITTED"}


@pytest.mark.feature("S-51")
def test_a_half_message_that_becomes_visible_past_its_age_is_asked_about(stage: CheckStage) -> None:
    with connect(stage.dsn) as late:
        late.execute("BEGIN")
        late.execute(
            "INSERT INTO outbox.message (topic, body, producer_group, state, born_at) "
            "VALUES ('t', 'b', 'payments', 'UNKNOWN', clock_timestamp() - interval '80 hours')"
        )
        stage.check(Script(True))
        late.execute("COMMIT")
    assert stage.check(Script(True)).decided == 1


@pytest.mark.feature("S-51", "S-53")
@POLICIES
def test_past_the_age_the_policy_follows_the_answer_that_nobody_knows(
    stage: CheckStage, policy: str, state: str
) -> None:
    stage.group(policy=policy)
    half = stage.half(age=OLD)
    done = stage.check(Script(UNKNOWN))
    assert (done.unknown, done.expired) == (1, 1)
    assert stage.state(half) == state
    assert [event.kind for event in stage.events(half)] == ["check", "transition"]
    assert "checked 1 times: the group's policy" in str(stage.events(half)[-1].reason)
    assert ("exhausted" in stage.alarms()) is (policy == "EXHAUSTED")


@pytest.mark.feature("S-51")
def test_an_answer_from_before_the_age_does_not_spare_the_last_question(stage: CheckStage) -> None:
    half = stage.half()
    stage.check(Script(UNKNOWN))
    stage.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '72 hours'")
    stage.make_due()
    assert stage.check(Script(True)).decided == 1
    assert stage.state(half) == "COMMITTED"


@pytest.mark.feature("S-51", "S-48")
def test_where_asking_fails_past_the_age_it_ends_exhausted_and_not_before_the_grace(
    stage: CheckStage,
) -> None:
    half = stage.half(age=OLD)
    stage.check(Script(raising))
    assert (stage.state(half), stage.checks(half)) == ("UNKNOWN", 1)
    assert 0 < (stage.due_in(half) or 0) <= 120, "asked again soon: its time is short"
    stage.make_due()
    stage.check(Script(raising))
    assert stage.state(half) == "UNKNOWN"
    stage.past(GRACE)
    stage.make_due()
    assert stage.check(Script(raising)).expired == 1
    assert stage.state(half) == "EXHAUSTED", "the policy is ROLLBACK, and nobody has answered"
    assert "checks get no reply any more" in str(stage.events(half)[-1].reason)
    assert "1 half message waits for an operator" in stage.alarms()["exhausted"]


@pytest.mark.feature("S-51", "S-48")
def test_a_group_that_recovers_within_the_grace_is_asked(stage: CheckStage) -> None:
    half = stage.half(age=OLD)
    stage.check(Script(raising))
    stage.past(GRACE)
    stage.make_due()
    stage.check(Script(True))
    assert stage.state(half) == "COMMITTED"


@pytest.mark.feature("S-52", "S-48")
@POLICIES
def test_checks_of_which_the_last_failed_are_no_reason_to_roll_back(
    stage: CheckStage, policy: str, state: str
) -> None:
    stage.group(policy=policy, max_checks=3)
    silent, early, last = (stage.half(biz_id=name) for name in ("silent", "early", "last"))

    def answers(view: MessageView) -> LocalTransactionState:
        if (view.biz_id, view.checks) in (("early", 0), ("last", 2)):
            return UNKNOWN
        raise RuntimeError("away")

    for _ in range(3):
        stage.check(Script(answers))
        stage.make_due()
    assert stage.state(silent) == "EXHAUSTED"
    assert "the last of 3 checks was not answered" in str(stage.events(silent)[-1].reason)
    assert stage.state(early) == "EXHAUSTED", "its local transaction may have committed after that answer"
    assert stage.state(last) == state, "the last check was answered"


@pytest.mark.feature("S-52", "S-48")
def test_silence_after_an_early_unknown_does_not_roll_back_what_was_committed(stage: CheckStage) -> None:
    # The first check finds the local transaction running. It commits, the process dies before its own commit, and the
    # callback is away for the rest of the default 15 checks.
    half = stage.half()
    stage.check(Script(UNKNOWN))
    for _ in range(14):
        stage.make_due()
        stage.check(Script(raising))
    assert stage.state(half) == "EXHAUSTED"
    assert "the last of 15 checks was not answered" in str(stage.events(half)[-1].reason)


@pytest.mark.feature("S-49", "S-51")
def test_a_listener_that_nobody_has_is_waited_for_and_then_exhausted(stage: CheckStage) -> None:
    known, unknown = stage.half(age=OLD, biz_id="known"), stage.half(age=OLD, biz_id="unknown")

    def answers(view: MessageView) -> bool:
        if view.biz_id == "unknown":
            raise NoCheckerError("nobody is registered")
        return True

    stage.check(Script(answers))
    assert (stage.state(known), stage.state(unknown)) == ("COMMITTED", "UNKNOWN")
    assert stage.checks(unknown) == 0, "no check is used up"
    stage.past(GRACE)
    stage.make_due()
    stage.check(Script(answers))
    assert stage.state(unknown) == "EXHAUSTED"


@pytest.mark.feature("S-49", "S-51")
@POLICIES
def test_what_nobody_can_be_asked_about_is_left_to_an_operator(
    stage: CheckStage, policy: str, state: str
) -> None:
    stage.group(policy=policy)
    half = stage.half(age=OLD)
    watch = stage.round(None)
    watch.run_once(stage.connection)
    assert "from 10 min after" in stage.alarms()["silent"]
    watch.run_once(stage.connection)
    assert stage.state(half) == "UNKNOWN", "operators are warned first"
    stage.past(GRACE)
    started_just_now = stage.round(None)  # (the countdown is in the database)
    assert started_just_now.run_once(stage.connection).expired == 0
    assert started_just_now.run_once(stage.connection).expired == 1
    started_just_now.run_once(stage.connection)
    assert stage.state(half) == "EXHAUSTED"
    assert set(stage.alarms()) == {"exhausted"}


@pytest.mark.feature("S-51")
def test_the_countdown_begins_again_when_no_checker_was_there(stage: CheckStage) -> None:
    half = stage.half(age=OLD)
    stage.check(None)
    stage.conn.execute(
        "UPDATE outbox.alarm SET since = since - interval '3 days', seen_at = seen_at - interval '3 days'"
    )
    watch = stage.round(None)
    watch.run_once(stage.connection)
    watch.run_once(stage.connection)
    assert stage.state(half) == "UNKNOWN", "it was a weekend without any checker"
    assert stage.check(Script(True)).decided == 1


@pytest.mark.feature("S-51")
def test_an_answer_ends_the_countdown_of_its_group(stage: CheckStage) -> None:
    stage.half(age=OLD)
    stage.check(None)
    assert "silent" in stage.alarms()
    stage.check(Script(True))
    assert "silent" not in stage.alarms()


@pytest.mark.feature("S-42", "S-51")
def test_a_locked_half_message_is_not_ended_however_long_nobody_answers(stage: CheckStage) -> None:
    half = stage.half(age=OLD)
    with connect(stage.dsn) as local:
        local.execute("BEGIN")
        local.execute("SELECT FROM outbox.message FOR UPDATE")
        watch = stage.round(None)
        watch.run_once(stage.connection)
        stage.past(GRACE)
        watch = stage.round(None)
        watch.run_once(stage.connection)
        watch.run_once(stage.connection)
        assert stage.state(half) == "UNKNOWN"
        local.execute("COMMIT")


@pytest.mark.feature("S-45", "S-51")
def test_a_commit_that_could_not_be_used_is_no_reason_to_roll_back(stage: CheckStage) -> None:
    half = stage.half(age=OLD)
    with connect(stage.dsn) as local:

        def commits(_: MessageView) -> bool:
            local.execute("BEGIN")
            local.execute("SELECT FROM outbox.message FOR UPDATE")
            return True

        asker = Script(commits)
        round = stage.round(asker)
        try:
            while not asker.asked or round.in_flight:
                round.step(stage.connection)
        finally:
            round.stop()
        local.execute("COMMIT")
    stage.past(GRACE)
    stage.make_due()
    stage.check(Script(raising))
    assert stage.state(half) == "UNKNOWN", "nobody has answered UNKNOWN"
