"""When parked topics are asked about again, and in which lane one is tried first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.parked import Held
from outbox_relay.publisher.waking import Waking
from tests.support.topic_registry import Registry, look_up


def parked(*topics: str) -> Waking:
    """Topics that were asked about once, at generation 1."""
    waking = Waking()
    waking.follow([(3, name) for name in topics])
    assert waking.due(time.monotonic()) == {*topics}
    waking.note(dict.fromkeys(topics, False), 1)
    return waking


def test_a_topic_that_stays_closed_is_asked_about_later_each_time() -> None:
    waking = parked("t", "u")
    for pause in (2, 4, 8, 16, 32, 60, 60):
        now = time.monotonic()
        assert waking.due(now + pause - 1) <= {"u"}
        assert waking.due(now + pause + 1) == {"t", "u"}
        waking.close("t")


def test_a_topic_that_is_open_is_not_asked_about_until_it_fails() -> None:
    waking = parked("t")
    waking.note({"t": True, "not parked": True}, 2)
    assert waking.open == {"t"}
    assert waking.due(time.monotonic() + 100) == set()
    waking.close("t")
    assert waking.open == set()
    assert waking.due(time.monotonic() + 100) == {"t"}


def test_what_is_read_before_its_time_opens_a_topic_only_after_a_change() -> None:
    waking = parked("t")
    for generation in (1, None):
        waking.note({"t": True}, generation)
        assert waking.open == set()
    waking.note({"t": True}, 2)
    assert waking.open == {"t"}


def look(waking: Waking, missing: int, *, generation: int = 1) -> bool:
    """Ask about a topic whose configuration may not be read, at the time for it; return whether it is tried."""
    waking._waits["t"].at = 0.0
    waking.note({"t": True}, generation, {"t": missing})
    is_open = "t" in waking.open
    waking.close("t")
    return is_open


def test_a_topic_that_may_lack_replicas_is_tried_when_one_comes_back_or_by_request() -> None:
    waking = parked("t")
    assert [look(waking, missing) for missing in (2, 2, 1, 1, 2, 1)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert look(waking, 1, generation=2), "an operator has registered it again"
    assert not look(waking, 1, generation=2)
    assert look(waking, 0, generation=2)
    waking.follow([])
    waking.follow([(3, "t")])
    assert not look(waking, 1, generation=2), "what was known of it is forgotten"


def test_a_topic_that_may_lack_replicas_is_tried_besides_later_each_time() -> None:
    waking = parked("t")
    assert not look(waking, 1)
    for pause in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        assert waking._trials["t"].at == pytest.approx(time.monotonic() + pause, abs=1)
        assert not look(waking, 1)
        waking._trials["t"].at = 0.0
        assert look(waking, 1)


def test_the_first_look_of_a_session_tries_no_topic_that_may_lack_replicas() -> None:
    waking = Waking()
    waking.follow([(3, "t"), (3, "u")])
    waking.note({"t": True, "u": True}, 7, {"t": 1, "u": 0})
    assert waking.open == {"u"}


def test_a_topic_that_is_parked_no_more_is_forgotten() -> None:
    waking = parked("t", "u")
    waking.note({"t": True, "u": True}, 2)
    waking.follow([(3, "u")])
    assert waking.open == {"u"}
    assert [*waking.names] == ["u"]
    waking.follow([(3, "t"), (3, "u")])
    assert waking.due(time.monotonic()) == {"t"}


def test_the_lane_that_failed_last_is_tried_last() -> None:
    waking = parked("t")
    assert waking.first([]) is None
    tried = []
    for _ in range(5):
        number = waking.first([-7, -8, -9])
        assert number is not None
        tried.append(number)
        waking.fail("t", number)
    assert tried == [-7, -8, -9, -7, -8]


def test_a_parked_topic_that_could_not_be_read_is_asked_about_later() -> None:
    registry = Registry()
    book = registry.book()
    book.waking.follow([(3, "parked")])
    registry.rows["parked"] = Unpublishable("TOPIC_PAUSED", "paused by a test")
    book.tend()
    [(asked, found)] = registry.begun
    assert [*found] == ["parked"]
    registry.begun.clear()
    asked.set_exception(KafkaUnavailableError("no broker replies"))
    book.tend()
    assert not registry.begun, "not again at once"
    assert book.waking.due(time.monotonic() + 100) == {"parked"}


def test_a_parked_topic_opens_with_the_generation_that_resumes_it() -> None:
    registry = Registry()
    book = registry.book()
    book.waking.follow([(3, "parked")])
    registry.rows["parked"] = Unpublishable("TOPIC_PAUSED", "paused by a test")
    look_up(registry, book, 2)
    assert not book.waking.open
    registry.rows["parked"] = 4
    look_up(registry, book, 3)
    assert book.waking.open == {"parked"}


def test_a_lane_whose_row_is_locked_is_passed_over_for_a_while() -> None:
    waking = parked("t")
    waking.pass_over(-7, 60.0)
    assert waking.first([-7, -8]) == -8
    assert waking.first([-7]) is None, "so that requested keys are asked for"
    waking.pass_over(-7, 0.0)
    assert waking.first([-7, -8]) == -7


def test_topics_that_are_parked_are_read_when_they_are_due_or_have_changed() -> None:
    """Thousands may be missing, and each refresh would ask Kafka about all of them."""
    registry = Registry()
    book = registry.book()
    registry.rows["parked"] = Unpublishable("UNKNOWN_TOPIC_OR_PART", "missing")
    book.waking.follow([(3, "parked")])
    book.tend()
    registry.end()
    book.tend()
    book._refresh_at = 0.0
    book.tend()
    [(_, found)] = registry.begun
    assert [*found] == ["t"], "it was asked about just now"
    registry.end()
    book.tend()
    book.expect(2)
    book.tend()
    [(_, found)] = registry.begun
    assert {*found} == {"t", "parked"}


def test_topics_that_are_parked_are_compared_only_when_they_have_changed() -> None:
    held, waking = Held(), Waking()
    names: list[str] = []

    def each() -> Iterator[tuple[int, str]]:
        for lane, topic in held.topics:
            names.append(topic)
            yield lane, topic

    def follow() -> list[str]:
        names[:] = []
        waking.follow(each(), held.topics_changed)
        return names

    held.park((3, "t", None, None), -1)
    assert follow() == ["t"]
    assert follow() == []
    held.park((3, "t", None, b"key"), 2)
    assert follow() == [], "a key is no topic"
    held.park((5, "u", None, None), -3)
    assert follow() == ["t", "u"]
    held.free((3, "t", None, None), -1)
    assert follow() == ["u"]
    held.drop({5})
    follow()
    assert not waking.names
