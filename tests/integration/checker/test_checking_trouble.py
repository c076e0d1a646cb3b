"""Groups in trouble: nobody registered, callbacks that fail or never return, floods; told to operators, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from outbox.checking import GroupRound, LocalTransactionState, NoCheckerError, group_alarms
from outbox.checking.breaker import FIRST_BREAK, LONGEST_BREAK, Breaker
from outbox.records import MessageView
from tests.support.checked_half_messages import GROUP, CheckStage, Script
from tests.support.plain_inserts import connect
from tests.support.waiting import wait_until

UNKNOWN = LocalTransactionState.UNKNOWN

USED_UP = "SELECT sum(checks) FROM outbox.pending_check"


class Clock:
    """A breaker's clock, which goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def with_clock(made: GroupRound) -> tuple[Breaker, Clock]:
    """Give a round a breaker whose time stands still."""
    clock = Clock()
    assert made.asking is not None
    made.asking.breaker = Breaker(clock)
    return made.asking.breaker, clock


def stepping(made: GroupRound, stage: CheckStage, condition: Callable[[], object]) -> Callable[[], object]:
    """A condition that is looked at after each step."""

    def stepped() -> object:
        made.step(stage.connection)
        return condition()

    return stepped


@pytest.mark.feature("S-49")
def test_with_nobody_registered_an_alarm_is_raised_and_no_check_used_up(stage: CheckStage) -> None:
    half = stage.half()
    for _ in range(20):
        stage.check(Script(True, missing="no listener is registered for checker 'payment'"))
        stage.make_due()
    assert stage.checks(half) == 0
    assert stage.events(half) == []
    assert stage.alarms() == {"no_checker": "no listener is registered for checker 'payment'"}
    assert stage.one("SELECT remark FROM outbox.pending_check") == stage.alarms()["no_checker"]
    stage.check(Script(True))
    assert stage.state(half) == "COMMITTED"
    assert stage.alarms() == {}


@pytest.mark.feature("S-49")
def test_who_finds_nobody_only_when_asking_uses_up_no_check_either(stage: CheckStage) -> None:
    half = stage.half()

    def nobody(_: MessageView) -> None:
        raise NoCheckerError("payments.example.com: nobody is registered")

    with stage.postponing(half, 2):  # another checker of the group may know
        stage.check(Script(nobody))
    assert stage.checks(half) == 0
    assert stage.alarms() == {"no_checker": "payments.example.com: nobody is registered"}


@pytest.mark.feature("S-49", "S-51")
def test_half_messages_that_nobody_asks_about_raise_an_alarm(stage: CheckStage) -> None:
    overdue = stage.half(age=20.0)
    stage.check(None)
    assert stage.alarms() == {}, "its own application may be about to ask"
    stage.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '30 seconds'")
    stage.check(None)
    assert stage.alarms() == {
        "no_checker": "1 half message is overdue, and no checker of this group asks about them"
    }
    stage.decide(overdue, "COMMITTED")
    stage.check(None)
    assert stage.alarms() == {}


def test_who_asks_nobody_leaves_no_rows_of_what_producers_decide(stage: CheckStage) -> None:
    half, own = stage.half(age=600.0), stage.half(age=600.0, check_after="1 hour")
    stage.check(None)
    assert stage.one("SELECT count(*) FROM outbox.pending_check") == 0
    assert "1 half message is overdue" in stage.alarms()["no_checker"], "the other's own delay is not over"
    stage.decide(half, "COMMITTED")
    stage.decide(own, "COMMITTED")
    stage.check(None)
    assert stage.one("SELECT count(*) FROM outbox.pending_check") == 0
    assert stage.alarms() == {}


def test_rows_of_a_checker_that_was_taken_away_are_tidied_up(stage: CheckStage) -> None:
    decided, undecided, asked = (stage.half(biz_id=name) for name in ("decided", "undecided", "asked"))
    stage.enqueue()
    stage.decide(decided, "COMMITTED")
    stage.decide(asked, "COMMITTED")
    stage.conn.execute("UPDATE outbox.pending_check SET due_at = due_at - interval '1 minute'")
    stage.conn.execute(
        "UPDATE outbox.pending_check SET asked_by = 'other', due_at = clock_timestamp() + interval '5 s' WHERE id = %s",
        [asked.id],
    )
    stage.check(None)
    assert [stage.checks(half) for half in (decided, undecided, asked)] == [None, 0, 0]


@pytest.mark.feature("S-55")
def test_a_callback_that_fails_five_times_in_a_row_is_left_alone(stage: CheckStage) -> None:
    stage.halves(100)

    def fail(_: MessageView) -> bool:
        raise ConnectionError("refused")

    asker = Script(fail)
    made = stage.round(asker, batch=10)
    breaker, clock = with_clock(made)
    made.run_once(stage.connection)
    asked = len(asker.asked)
    assert 5 <= asked <= 4 + 10, "what was asked before the fifth failure was seen"
    assert "refused" in stage.alarms()["failing"]
    used_up = stage.one(USED_UP)
    assert used_up == asked
    for _ in range(3):
        made.run_once(stage.connection)
    assert len(asker.asked) == asked, "nothing is asked while it is open"
    assert stage.one(USED_UP) == used_up
    assert stage.one("SELECT count(*) FROM outbox.pending_check WHERE asked_by IS NOT NULL") == 0

    clock.now += FIRST_BREAK
    for _ in range(3):
        made.run_once(stage.connection)
    assert len(asker.asked) == asked + 1, "one question, and a longer pause"
    assert breaker.may_ask() == 0

    asker.say = lambda _: True
    clock.now += 2 * FIRST_BREAK
    made.run_once(stage.connection)
    due = "SELECT count(*) FROM outbox.pending_check WHERE due_at <= clock_timestamp()"
    assert stage.one(due) == 0, "it goes on where it stopped"
    assert stage.alarms() == {}
    made.stop()


@pytest.mark.feature("S-55")
def test_answers_between_failures_keep_the_breaker_closed(stage: CheckStage) -> None:
    for number in range(60):
        stage.half(biz_id=str(number % 3))

    def say(view: MessageView) -> bool:
        if view.biz_id != "0":
            raise ValueError(view.biz_id)
        return True

    stage.group(workers=1)
    asker = Script(say)
    stage.check(asker)
    assert len(asker.asked) == 60
    assert stage.alarms() == {}


@pytest.mark.feature("S-46")
def test_calls_that_never_return_do_not_make_threads_without_end(stage: CheckStage) -> None:
    stage.group("hanging", workers=2, check_timeout="0.02 seconds")
    stage.halves(50, "hanging")
    release = threading.Event()
    asker = Script(lambda _: release.wait(120))
    made = stage.round(asker, "hanging")
    asking = made.asking
    assert asking is not None

    def all_hang() -> bool:
        if asking.breaker.open:
            asking.breaker = Breaker()  # as if its pause were over at once
        return asking.workers.available == 0

    wait_until(stepping(made, stage, all_hang), "all threads hang")
    _, clock = with_clock(made)
    mine = [t for t in threading.enumerate() if t.name.startswith("outbox-check-hanging")]
    assert len(mine) == 16, "as many as may hang"
    wait_until(stepping(made, stage, lambda: "failing" in stage.alarms("hanging")), "operators are told")
    asked, used_up = len(asker.asked), stage.one(USED_UP)
    stage.make_due()
    for _ in range(3):
        made.run_once(stage.connection)
    assert len(asker.asked) == asked == 16
    assert stage.one(USED_UP) == used_up

    release.set()
    wait_until(lambda: asking.workers.available == 2, "threads are free again")
    decided = "SELECT count(*) FROM outbox.message WHERE state <> 'UNKNOWN'"
    assert stage.one(decided) == 0, "what they answered so late is thrown away"
    clock.now += LONGEST_BREAK
    wait_until(stepping(made, stage, lambda: stage.one(decided)), "it goes on")
    made.stop()
    wait_until(lambda: not any(thread.is_alive() for thread in mine), "threads end")


@pytest.mark.feature("S-46")
def test_a_half_message_whose_call_hangs_takes_one_thread_however_often_it_is_due(stage: CheckStage) -> None:
    stage.group(workers=1, check_timeout="1 second")
    half = stage.half(biz_id="hangs")
    release = threading.Event()
    asker = Script(lambda view: release.wait(120) if view.biz_id == "hangs" else True)
    made = stage.round(asker)
    for _ in range(4):
        made.run_once(stage.connection)
        assert stage.checks(half) == 1, "what was not asked is not counted"
        stage.make_due()
    assert len(asker.asked) == 1
    assert "has not returned yet" in stage.one("SELECT remark FROM outbox.pending_check")
    assert len(stage.events(half)) == 1
    stage.check(Script(LocalTransactionState.UNKNOWN))
    assert stage.checks(half) == 2, "another process asks"
    stage.make_due()
    other = stage.half()
    made.run_once(stage.connection)
    assert stage.state(other) == "COMMITTED"
    release.set()
    made.stop()


@pytest.mark.feature("S-46")
def test_calls_that_hang_keep_no_healthy_half_message_of_their_group(
    stage: CheckStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.checking.asking.STUCK_AFTER", 0.1)
    # An alarm that stands is written again, with the calls that hang by then, after a minute.
    monkeypatch.setattr("outbox.checking.alarms.AGAIN", 0.1)
    stage.group(workers=1, check_timeout="0.5 seconds")
    hang = [stage.half(biz_id="hangs") for _ in range(3)]
    healthy = [stage.half() for _ in range(5)]
    release = threading.Event()
    made = stage.round(Script(lambda view: release.wait(120) if view.biz_id == "hangs" else True))
    decided = "SELECT count(*) FROM outbox.message WHERE state = 'COMMITTED'"
    wait_until(
        stepping(made, stage, lambda: stage.one(decided) == 5), "the healthy ones are decided", seconds=40
    )
    assert [stage.state(half) for half in healthy] == ["COMMITTED"] * 5
    named = ", ".join(str(half.id) for half in hang)
    told = f"3 calls have not returned, about half messages {named}: each keeps a thread until it does"
    wait_until(stepping(made, stage, lambda: stage.alarms() == {"failing": told}), "they are named")
    release.set()
    wait_until(stepping(made, stage, lambda: stage.alarms() == {}), "they have returned")
    stage.make_due()
    wait_until(stepping(made, stage, lambda: stage.one(decided) == 8), "they are asked about again")
    made.stop()


@pytest.mark.feature("S-55")
def test_a_flood_is_told_and_its_end_too(stage: CheckStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_alarms, "FLOOD", 100)
    stage.halves(120)
    stage.check(None, page=50)
    assert "120 half messages" in stage.alarms()["flood"]
    stage.conn.execute(b"UPDATE outbox.message SET state = 'COMMITTED' WHERE id % 3 <> 0")
    stage.check(None, page=50)
    assert "flood" not in stage.alarms()


def test_alarms_are_kept_apart_by_group(stage: CheckStage) -> None:
    stage.half("a")
    stage.half("b")
    stage.check(Script(True, missing="nobody"), "a")
    stage.check(Script(True), "b")
    assert set(stage.alarms("a")) == {"no_checker"}
    assert stage.alarms("b") == {}
    assert stage.alarms(GROUP) == {}


class Unable(Script):
    """An asker that lacks what it needs for every message, such as the group's secret."""

    def unable(self) -> str:
        return "no secret for its callback"


@pytest.mark.feature("S-49", "S-56")
def test_a_checker_that_lacks_the_secret_leaves_the_group_to_the_others(stage: CheckStage) -> None:
    half = stage.half()
    lacking = Unable(True)
    assert stage.check(lacking).claimed == 0
    assert "no secret for its callback" in stage.alarms()["no_checker"]
    assert lacking.asked == []
    assert stage.check(Script(True)).decided == 1, "at once: nothing was put off"
    assert stage.state(half) == "COMMITTED"
    assert stage.alarms() == {}, "the group has a checker that can ask"


@pytest.mark.feature("S-49")
def test_a_checker_of_another_version_hardly_delays_the_one_that_knows(stage: CheckStage) -> None:
    half = stage.half()
    older = stage.round(Script(missing="nobody is registered for checker 'payment'"))
    older.run_once(stage.connection)
    assert (stage.due_in(half) or 0) <= 2
    stage.make_due()
    assert older.step(stage.connection).claimed == 0, "it pauses for longer than the half message"
    older.stop()
    assert stage.check(Script(True)).decided == 1


@pytest.mark.feature("S-49")
def test_an_alarm_that_another_checker_raised_ends_when_the_group_is_asked(stage: CheckStage) -> None:
    stage.conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('payments', 'no_checker', 'left behind')"
    )
    stage.half()

    def fails(_: MessageView) -> None:
        raise RuntimeError("no such table")

    stage.check(Script(fails))
    assert "no_checker" not in stage.alarms(), "it is asked: that this fails is another alarm"


@pytest.mark.feature("S-55")
def test_a_flood_widens_the_interval_of_its_group_alone_and_narrows_again(
    stage: CheckStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.checking.group_alarms.FLOOD", 10)
    stage.halves(20)
    alone = stage.half("alone")
    flooded = stage.round(Script(UNKNOWN))
    flooded.run_once(stage.connection)
    flooded.run_once(stage.connection)
    stage.make_due()
    flooded.run_once(stage.connection)
    assert "4.0 times as rarely" in stage.alarms()["flood"]
    due = stage.one(
        "SELECT min(extract(epoch FROM due_at - clock_timestamp()))::float8 FROM outbox.pending_check"
    )
    assert due == pytest.approx(4 * 60, abs=30), "60 s after the second check, four times as long"
    stage.check(Script(UNKNOWN), "alone")
    assert stage.due_in(alone) == pytest.approx(30, abs=15)
    stage.conn.execute(
        "UPDATE outbox.message SET state = 'COMMITTED' WHERE id IN "
        "(SELECT id FROM outbox.message WHERE producer_group = 'payments' ORDER BY id LIMIT 16)"
    )
    stage.make_due()
    flooded.run_once(stage.connection)
    assert "flood" not in stage.alarms()
    stage.make_due()
    flooded.run_once(stage.connection)
    assert stage.one("SELECT max(due_at) < clock_timestamp() + interval '250 s' FROM outbox.pending_check")
    flooded.stop()


@pytest.mark.feature("S-48", "S-52")
@pytest.mark.parametrize("headers", ['{"": 1e5000}', '{"n": 7}', "[]"])
def test_headers_that_cannot_be_read_stop_no_other_half_message(stage: CheckStage, headers: str) -> None:
    stage.group(max_checks=2)
    sick, well = stage.half(age=60), stage.half()
    with connect(stage.dsn) as owner:  # past the table's own rules, as a hole in them would be
        owner.execute("SET session_replication_role = replica")
        owner.execute("UPDATE outbox.message SET headers = %s::jsonb WHERE id = %s", [headers, sick.id])
    asker = Script(True)
    stage.check(asker)
    assert asker.ids == [well.id]
    assert stage.state(well) == "COMMITTED"
    assert (stage.state(sick), stage.checks(sick)) == ("UNKNOWN", 1)
    assert stage.events(sick)[-1].reason == "not asked: the message's headers cannot be read"
    stage.make_due()
    stage.check(asker)
    assert stage.state(sick) == "EXHAUSTED", "an operator decides"
