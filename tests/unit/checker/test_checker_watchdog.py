"""Calls are cut off at their deadline, and never once they have ended."""

from __future__ import annotations

import threading
import time

import pytest

from outbox_relay.calls.deadline import Bounded, DeadlineError, Watchdog
from tests.support.waiting import wait_until


def test_a_late_call_is_cut_off_at_its_deadline() -> None:
    watchdog, cut = Watchdog(), threading.Event()
    started = time.monotonic()
    with watchdog.until(started + 0.05, cut.set) as watch:
        assert cut.wait(10)
    assert time.monotonic() - started >= 0.05
    assert watch.fired
    watchdog.close()


def test_a_call_that_ended_in_time_is_never_cut_off() -> None:
    watchdog, cut = Watchdog(), threading.Event()
    with watchdog.until(time.monotonic() + 0.1, cut.set) as watch:
        pass
    other = threading.Event()
    with watchdog.until(time.monotonic() + 0.3, other.set):
        assert other.wait(10)
    assert not cut.is_set()
    assert not watch.fired
    watchdog.close()


def test_an_earlier_deadline_overtakes_a_later_one() -> None:
    watchdog, early, late = Watchdog(), threading.Event(), threading.Event()
    with (
        watchdog.until(time.monotonic() + 60, late.set),
        watchdog.until(time.monotonic() + 0.05, early.set),
    ):
        assert early.wait(10)
    assert not late.is_set()
    watchdog.close()


def test_closing_cuts_off_what_is_still_late_and_ends_the_thread() -> None:
    watchdog, cut = Watchdog(), threading.Event()
    with watchdog.until(time.monotonic() + 0.05, cut.set):
        watchdog.close()
        assert cut.wait(10)
    wait_until(lambda: watchdog._thread is None, "the thread has ended")


def test_a_bounded_call_returns_raises_or_is_left_behind() -> None:
    late: list[str] = []
    bounded: Bounded[str] = Bounded(1, discard=late.append)
    soon = time.monotonic() + 10
    assert bounded.call(lambda: "done", soon, "working") == "done"

    def fail() -> str:
        raise KeyError("no")

    with pytest.raises(KeyError):
        bounded.call(fail, soon, "working")
    gate = threading.Event()

    def hang() -> str:
        gate.wait(30)
        return "late"

    with pytest.raises(DeadlineError, match="time is up while working"):
        bounded.call(hang, time.monotonic() + 0.05, "working")
    with pytest.raises(DeadlineError, match="earlier calls still hang"):
        bounded.call(lambda: "more", time.monotonic() + 0.05, "working")
    gate.set()
    wait_until(lambda: late == ["late"], "the late result is discarded")
    assert bounded.call(lambda: "again", soon, "working") == "again"
