"""How often a checker does what: pauses between checks, scans over a group, the breaker, the writing of alarms."""

from __future__ import annotations

import pytest

from outbox.checking.alarms import AGAIN, Alarms
from outbox.checking.breaker import FAILURES, FIRST_BREAK, LONGEST_BREAK, Breaker
from outbox.checking.finding import Found
from outbox.checking.group_alarms import FLOOD, MOST_STRETCH, GroupAlarms, stretch_of
from outbox.checking.group_settings import GroupSettings
from outbox.checking.scan import REST, SHORT_PAUSE, WHOLE_PAUSE, Overview, Scan


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def found(last: int | None, rows: int, *, young: int | None = None, pending: int = 0) -> Found:
    return Found(last, rows, 0, 0, pending, young, 0, [], [])


@pytest.mark.feature("S-41")
def test_pauses_double_from_30_seconds_to_10_minutes() -> None:
    group = GroupSettings("g")
    assert [group.pause_after(checks) for checks in range(1, 16)] == [30, 60, 120, 240, 480] + [600] * 10
    assert group.pause_after(10**9) == 600


@pytest.mark.feature("S-41", "S-52")
def test_pauses_follow_the_group_s_settings() -> None:
    group = GroupSettings("g", check_interval=0.5, max_check_interval=3.0, max_checks=2)
    assert [group.pause_after(checks) for checks in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 3.0]
    assert not group.used_up(1)
    assert group.used_up(2)


@pytest.mark.feature("S-55")
def test_a_flood_makes_pauses_up_to_ten_times_as_long() -> None:
    assert MOST_STRETCH == 10
    assert [stretch_of(FLOOD * part // 2) for part in (0, 1, 2, 3, 10, 11, 1_000)] == [1, 1, 2, 3, 10, 10, 10]


def test_the_first_scan_is_over_the_whole_group() -> None:
    clock = Clock()
    scan = Scan(10, clock)
    assert scan.begin() == 0
    assert scan.took(found(70, 10), 0.0) is None
    assert scan.begin() == 70
    assert scan.took(found(75, 5), 0.0) == Overview()
    assert scan.begin() is None


def test_a_short_scan_begins_where_the_first_young_one_was() -> None:
    clock = Clock()
    scan = Scan(10, clock)
    scan.begin()
    scan.took(found(70, 10), 0.0)
    scan.took(found(80, 10, young=74), 0.0)
    scan.took(found(84, 4, young=81), 0.0)
    clock.now += SHORT_PAUSE
    assert scan.begin() == 73
    assert scan.took(found(90, 10), 0.0) is None
    assert scan.took(found(None, 0), 0.0) is None, "a short scan counts nothing"
    clock.now += SHORT_PAUSE
    assert scan.begin() == 90


@pytest.mark.feature("S-56")
def test_the_pause_after_a_scan_is_twenty_times_as_long() -> None:
    clock = Clock()
    scan = Scan(10, clock)
    scan.begin()
    for _ in range(3):
        scan.took(found(1, 10), 0.4)
    scan.took(found(1, 3), 0.4)
    assert scan.next_at == pytest.approx(clock.now + REST * 1.6)
    assert REST * 1.6 > WHOLE_PAUSE


def test_the_whole_group_is_scanned_every_ten_seconds() -> None:
    clock = Clock()
    scan = Scan(10, clock)
    scan.begin()
    scan.took(found(50, 5), 0.0)
    scans = []
    for _ in range(22):
        clock.now += 0.5
        if (after := scan.begin()) is not None:
            scans.append(after)
            scan.took(found(50, 5), 0.0)
    assert scans.count(0) == 1
    assert len(scans) >= 10


def test_a_scan_that_hurries_starts_again_with_the_whole_group() -> None:
    clock = Clock()
    scan = Scan(10, clock)
    scan.begin()
    scan.took(found(50, 10), 5.0)
    scan.hurry()
    assert scan.begin() == 0
    assert scan.took(found(60, 2, pending=2), 0.0) == Overview(pending=2)


def test_five_failures_in_a_row_open_the_breaker_and_one_answer_closes_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for number in range(FAILURES):
        assert breaker.may_ask() is None
        breaker.failed(f"failure {number}")
    assert breaker.open
    assert breaker.reason == "failure 4"
    assert breaker.may_ask() == 0
    clock.now += FIRST_BREAK
    assert breaker.may_ask() == 1
    breaker.probe()
    assert breaker.may_ask() == 0, "one question"
    breaker.succeeded()
    assert breaker.may_ask() is None


def test_an_answer_between_failures_starts_the_count_again() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed("no")
        breaker.succeeded()
    assert not breaker.open


def test_the_breaker_s_pause_doubles_up_to_a_minute_and_starts_again() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    pauses = []
    breaker.trip("no")
    for _ in range(6):
        begun = clock.now
        while breaker.may_ask() == 0:
            clock.now += 0.5
        pauses.append(clock.now - begun)
        breaker.probe()
        breaker.failed("still no")
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert max(pauses) == LONGEST_BREAK
    breaker.succeeded()
    breaker.trip("again")
    clock.now += FIRST_BREAK
    assert breaker.may_ask() == 1


def test_failures_that_come_in_while_it_is_open_do_not_lengthen_the_pause() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(50):
        breaker.failed("no")
    clock.now += FIRST_BREAK
    assert breaker.may_ask() == 1


def test_a_question_that_was_not_asked_may_be_asked_again() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.trip("no")
    clock.now += FIRST_BREAK
    breaker.probe()
    breaker.no_probe()
    assert breaker.may_ask() == 1


def test_alarms_are_written_when_there_is_news_and_once_a_minute() -> None:
    clock = Clock()
    alarms = Alarms("g", clock)
    assert alarms.due() == []
    alarms.set("flood", "many")
    assert alarms.due() == ["flood"]
    alarms.written(["flood"])
    alarms.set("flood", "more")
    assert alarms.due() == []
    clock.now += AGAIN
    assert alarms.due() == ["flood"]
    alarms.set("flood", None)
    assert alarms.due() == ["flood"]
    alarms.written(["flood"])
    clock.now += AGAIN
    assert alarms.due() == [], "what is over is not written again"


def test_what_is_well_is_cleared_once_for_an_earlier_checker_may_have_raised_it() -> None:
    alarms = Alarms("g", Clock())
    alarms.set("failing", None)
    assert alarms.due() == ["failing"]


def test_no_checker_is_cleared_after_a_retry_interval_in_which_none_was_missing() -> None:
    clock = Clock()
    alarms = GroupAlarms("g", clock)
    alarms.no_checker("nobody", 60.0)
    alarms.written(alarms.due())
    alarms.answered(True)
    assert alarms.due() == ["failing", "silent"]
    alarms.written(alarms.due())
    clock.now += 60.0
    alarms.answered(False)
    assert alarms.due() == ["no_checker", "failing", "silent"], "a minute old: one holds, the others are over"
    alarms.written(alarms.due())
    alarms.answered(True)
    assert alarms.due() == ["no_checker"]


def test_half_messages_exhausted_behind_the_scan_are_not_forgotten_at_its_end() -> None:
    alarms = GroupAlarms("g", Clock())
    alarms.exhausted(2)
    alarms.overview(Overview(), asked=True)
    assert alarms.due().count("exhausted") == 1
    alarms.written(alarms.due())
    alarms.overview(Overview(), asked=True)
    assert "exhausted" in alarms.due(), "none is left at the end of the next scan"


def test_a_rollback_by_policy_is_written_before_a_scan_ends_it() -> None:
    alarms = GroupAlarms("g", Clock())
    alarms.rolled_back(2)
    alarms.overview(Overview(), asked=True)
    assert "rolled_back" in alarms.due()
    assert alarms.is_unwritten("rolled_back"), "the scan of the same step does not clear what is new"
    alarms.written(alarms.due())
    alarms.overview(Overview(), asked=True)
    assert "rolled_back" in alarms.due()
    assert not alarms.is_unwritten("rolled_back")


@pytest.mark.feature("S-55")
def test_a_flood_is_over_at_half_its_height() -> None:
    alarms = GroupAlarms("g", Clock())
    alarms.overview(Overview(pending=FLOOD), asked=True)
    alarms.written(alarms.due())
    alarms.overview(Overview(pending=FLOOD // 2), asked=True)
    assert "flood" not in alarms.due()
    alarms.overview(Overview(pending=FLOOD // 2 - 1), asked=True)
    assert "flood" in alarms.due()
