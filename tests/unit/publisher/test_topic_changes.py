"""When a changed partition count is used: what a session knows of topics, with look-ups that the test answers."""

from __future__ import annotations

import pytest

from outbox_relay.publisher import topic_changes
from outbox_relay.publisher import topics as book_module
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.topics import TopicBook
from tests.support.topic_registry import Registry, look_up


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def book(registry: Registry) -> TopicBook:
    return registry.book()


def test_a_change_is_used_when_nothing_of_the_topic_is_on_the_wire(
    registry: Registry, book: TopicBook
) -> None:
    registry.rows["t"], registry.wire = 8, {"t", "u"}
    look_up(registry, book, 2)
    assert book.known("t").partitions == 4
    assert book.generation is None, "messages of the older count are unacknowledged"
    book.prepare(["t"])
    assert not book.changes.awaited, "the older count stays in use meanwhile"
    registry.wire = {"u"}
    book.tend()
    assert book.known("t").partitions == 8
    assert book.generation == 2


def test_a_topic_that_is_read_for_lanes_just_taken_waits_for_its_change(
    registry: Registry, book: TopicBook
) -> None:
    registry.rows["t"], registry.wire = 8, {"t"}
    book.read_anew(2)
    book.prepare(["t"])
    assert book.changes.awaited == {"t"}
    assert book.changes.stuck(()) == frozenset()
    assert book.changes.stuck({"t"}) == {"t"}, "an acknowledgement that does not come"
    registry.wire = set()
    book.prepare(["t"])
    assert not book.changes.awaited
    assert book.known("t").partitions == 8


def test_nothing_is_read_anew_when_the_registry_has_not_changed(registry: Registry, book: TopicBook) -> None:
    registry.rows["t"] = 8
    book.read_anew(1)
    book.prepare(["t"])
    assert book.known("t").partitions == 4


def test_a_look_up_that_began_earlier_takes_no_key_back(registry: Registry, book: TopicBook) -> None:
    book.expect(2)
    book.tend()  # this look-up has read 4
    registry.rows["t"] = 8
    book.read_anew(3)
    book.prepare(["t"])
    assert book.known("t").partitions == 8
    registry.end()
    book.tend()
    assert book.known("t").partitions == 8
    assert not book.changes


@pytest.mark.parametrize("meanwhile", ["forgotten", "unpublishable"])
def test_the_last_used_count_is_remembered(
    registry: Registry, book: TopicBook, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    registry.wire = {"t"}
    if meanwhile == "forgotten":
        monkeypatch.setattr(book_module, "FORGET_S", 0.0)
        book.expect(2)
        book.tend()
        assert not registry.begun, "nothing is known any more"
    else:
        registry.rows["t"] = Unpublishable("PARTITIONS_MISSING", "Kafka has 4")
        look_up(registry, book, 2)
        with pytest.raises(Unpublishable):
            book.known("t")
    registry.rows["t"] = 8
    book.prepare(["t"])
    assert book.changes.awaited == {"t"}
    registry.wire = set()
    book.prepare(["t"])
    assert book.known("t").partitions == 8


def test_a_change_waits_until_the_producer_lists_the_partitions(
    registry: Registry, book: TopicBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "ASK_EVERY_S", 0.0)
    registry.rows["t"], registry.listed = 8, False
    look_up(registry, book, 2)
    assert book.known("t").partitions == 4
    assert not book.changes.held_up(()), "no acknowledgement is waited for"
    book.read_anew(2)
    with pytest.raises(
        KafkaUnavailableError, match="do not list all partitions yet of the changed topics: t"
    ):
        book.prepare(["t"])
    monkeypatch.setattr(topic_changes, "STUCK_S", -1.0)
    assert book.changes.stuck(()) == {"t"}
    registry.listed = True
    book.prepare(["t"])
    assert book.known("t").partitions == 8


def test_a_change_that_is_taken_back_is_not_used(registry: Registry, book: TopicBook) -> None:
    registry.rows["t"], registry.wire = 8, {"t"}
    look_up(registry, book, 2)
    assert book.changes
    registry.rows["t"] = 4
    look_up(registry, book, 3)
    assert not book.changes
    assert book.known("t").partitions == 4
    assert book.generation == 3


PAUSED = Unpublishable("TOPIC_PAUSED", "paused by a test")


@pytest.mark.parametrize("code", ["TOPIC_PAUSED", "PARTITIONS_MISSING"])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_topic_that_closes_while_its_change_waits_is_not_opened_by_it(
    registry: Registry, book: TopicBook, code: str, *, is_awaited: bool
) -> None:
    registry.rows["t"], registry.wire = 8, {"t"}
    if is_awaited:
        book.read_anew(2)
        book.prepare(["t"])
        assert book.changes.awaited == {"t"}
    look_up(registry, book, 2)
    assert book.changes
    registry.rows["t"] = Unpublishable(code, "closed")
    look_up(registry, book, 3)
    assert not book.changes.awaited, "other topics flow"
    assert book.generation == (None if code == "TOPIC_PAUSED" else 3)
    if is_awaited:
        book.prepare(["t"])
        assert not book.changes.awaited
    registry.wire = set()
    book.tend()
    with pytest.raises(Unpublishable, match=code):
        book.known("t")
    assert book.generation == 3


def test_a_change_that_was_read_before_a_pause_keeps_its_rules_after_it(
    registry: Registry, book: TopicBook
) -> None:
    registry.rows["t"], registry.wire = 8, {"t"}
    look_up(registry, book, 2)
    registry.rows["t"] = PAUSED
    look_up(registry, book, 3)
    registry.rows["t"] = 8
    book.expect(4)
    book.tend()
    assert book.generation is None, "messages of the older count are unacknowledged"
    book.prepare(["t"])
    assert book.changes.awaited == {"t"}
    assert book.generation is None
    registry.wire = set()
    book.prepare(["t"])
    assert book.known("t").partitions == 8
    assert book.generation == 4


def test_a_topic_that_goes_on_while_it_is_on_the_wire_holds_up_no_later_change(
    registry: Registry, book: TopicBook
) -> None:
    registry.rows["t"], registry.wire = PAUSED, {"t"}
    look_up(registry, book, 2)
    assert book.generation is None
    registry.rows["t"] = 4
    book.expect(3)
    book.tend()
    book.prepare(["t"])
    assert book.known("t").partitions == 4
    assert book.generation == 3, "newer messages of it are always on the wire"


def test_a_look_up_that_failed_is_repeated_and_confirms_nothing(
    registry: Registry, book: TopicBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_module, "RETRY_S", 0.0)
    registry.rows["t"] = 8
    book.expect(2)
    book.tend()
    registry.begun.pop()[0].set_exception(KafkaUnavailableError("no broker replies"))
    book.tend()
    assert book.generation == 1
    registry.end()
    book.tend()
    assert book.generation == 2
    assert book.known("t").partitions == 8
