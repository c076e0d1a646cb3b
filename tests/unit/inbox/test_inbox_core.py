"""The parts of a consumer that need no server: offsets, tags, delays, starts, ids of records."""

from __future__ import annotations

import logging
import random
import re
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox.errors import ConfigurationError, InvalidSubscriptionError
from outbox.inbox import ConsumeFrom, DelaySchedule, ReconsumeLater, TagExpression, repeats
from outbox.inbox.core.tracker import OffsetTracker
from outbox.inbox.failures import describe, reported
from outbox.inbox.messages import RawRecord, Source, born_on, identify, pairs_of
from outbox.inbox.sessions import is_infrastructure
from outbox.inbox.settings import check_kafka, subscription_of
from outbox.inbox.starts import Known, decide_start
from tests.support.members import member_of


def test_the_stored_offset_never_passes_what_is_not_done() -> None:
    # Offsets with gaps, done in a random order: a set does the same, slowly.
    chance = random.Random(7)
    tracker, running, offset, done = OffsetTracker(5), set[int](), 5, set[int]()
    for _ in range(3000):
        if running and chance.random() < 0.5:
            ended = chance.choice(sorted(running))
            running.remove(ended)
            done.add(ended)
            tracker.done(ended)
        else:
            offset += chance.choice((1, 1, 1, 2, 7))
            assert tracker.add(offset - 1)
            running.add(offset - 1)
        assert tracker.safe == (min(running) if running else tracker.next)
        assert tracker.incomplete == len(running)
        highest = max(done, default=4) + 1
        assert tracker.width == max(0, highest - tracker.safe)


def test_an_offset_that_was_seen_is_not_taken_again() -> None:
    tracker = OffsetTracker(10)
    assert not tracker.add(9)
    assert tracker.add(10)
    assert not tracker.add(10)
    tracker.advance(14)
    assert (tracker.safe, tracker.next) == (10, 14)
    tracker.done(10)
    assert tracker.safe == 14
    tracker.done(10)
    tracker.done(99)
    assert tracker.safe == 14


@pytest.mark.feature("S-88")
@pytest.mark.parametrize(
    ("text", "tags", "matches"),
    [
        ("*", (), True),
        (" * ", ("a",), True),
        ("a", ("a",), True),
        ("a", (), False),
        ("a || b", ("b", "c"), True),
        ("a||b", ("c",), False),
        ("a", ("A",), False),
    ],
)
def test_a_tag_expression_matches_one_of_its_tags(text: str, tags: tuple[str, ...], matches: bool) -> None:
    assert TagExpression.parse(text).matches(tags) is matches


@pytest.mark.parametrize(
    "text", ["", " ", "a || ", "|| a", "a b", "a | b", "* || a", "a\nb", "a ||| b", None]
)
def test_a_tag_expression_that_cannot_be_parsed_is_refused(text: str) -> None:
    with pytest.raises(InvalidSubscriptionError, match="allowed: "):
        TagExpression.parse(text)


def test_equal_tag_expressions_are_stored_alike() -> None:
    assert str(TagExpression.parse("b||a || b")) == str(TagExpression.parse("a||b")) == "a || b"


def test_retries_wait_for_the_delay_levels_of_rocketmq() -> None:
    delays = DelaySchedule.levels()
    assert [delays.after(n) for n in (1, 2, 3, 15, 16, 17)] == [10, 30, 60, 3600, 7200, None]
    assert DelaySchedule.levels(20).pauses[-3:] == (7200, 7200, 7200)
    assert DelaySchedule.of(["250ms", "2m", 3]).pauses == (0.25, 120, 3)
    assert DelaySchedule.levels(0).after(1) is None


@pytest.mark.feature("H-61")
@pytest.mark.parametrize(
    "pause",
    [
        "",
        "10",
        "1 s",
        "-1s",
        -1,
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        -(10**400),
        "3651d",
        "5y",
        True,
        None,
    ],
)
def test_a_delay_that_cannot_be_read_is_refused(pause: Any) -> None:
    allowed = re.escape("; allowed: 0 to 315360000 seconds (ten years), or a text such as '10s'")
    for use in (lambda: DelaySchedule.of([pause]), lambda: ReconsumeLater(pause)):
        with pytest.raises(ConfigurationError, match=f"delay: .*{allowed}"):
            use()


@pytest.mark.feature("H-61")
@pytest.mark.parametrize(
    "classes", [ValueError, ["ValueError"], [ValueError()], [KeyboardInterrupt], 7, None]
)
def test_only_classes_of_exceptions_are_never_retried(classes: Any) -> None:
    allowed = re.escape("; allowed: a list of classes of exceptions, such as [ValueError, KeyError]")
    for make in (DelaySchedule.levels, lambda **options: DelaySchedule.of(["1s"], **options)):
        with pytest.raises(ConfigurationError, match=f"never_retry: .*{allowed}"):
            make(never_retry=classes)


@pytest.mark.feature("H-61")
def test_the_pause_of_a_listener_gives_no_more_attempts_than_the_schedule_has() -> None:
    delays = DelaySchedule.of(["1s", "2s"], never_retry=[LookupError])
    own, final = reported("later", pause=7200), reported("dead", is_final=True)
    assert [delays.next(own, attempts) for attempts in (1, 2, 3)] == [7200, 7200, None]
    assert [delays.next(each, 1) for each in (reported("x"), final)] == [1, None]
    assert [delays.next(describe(each), 1) for each in (KeyError(), ValueError(), SystemExit())] == [
        None,
        1,
        1,
    ]


@pytest.mark.feature("S-89")
@pytest.mark.parametrize(
    ("position", "known", "offset", "gap"),
    [
        (None, Known(3, 9, None), 3, None),
        (7, Known(3, 9, None), 7, None),
        (None, Known(3, 9, 5), 5, None),
        (7, Known(3, 9, 8), 7, None),
        (7, Known(3, 9, 4), 4, None),
        (9, Known(9, 9, 9), 9, None),
        (1, Known(3, 9, 2), 3, (1, 3)),
        (12, Known(3, 9, 12), 3, (9, 12)),
    ],
)
def test_reading_begins_at_the_lower_of_both_offsets(
    position: int | None, known: Known, offset: int, gap: tuple[int, int] | None
) -> None:
    start = decide_start(position, known)
    assert (start.offset, start.gap) == (offset, gap)


def test_a_position_that_only_this_partition_lacks_is_not_taken_from_kafka() -> None:
    assert decide_start(None, Known(3, 9, 7), is_missing=True).offset == 3


SOURCE = Source(1, "cluster/topic")


def record(*headers: tuple[str, bytes | None], body: bytes | None = b"b", offset: int = 0) -> RawRecord:
    return RawRecord("t", 0, offset, b"k", body, headers, 1_700_000_000_000)


def test_the_day_of_birth_is_a_function_of_the_message() -> None:
    own = (("outbox-id", b"6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11"), ("outbox-born-at", b"1699999999999"))
    first = identify(SOURCE, record(*own), orderly=True)
    again = identify(SOURCE, record(*own, offset=7)._replace(timestamp=1_800_000_000_000), orderly=True)
    assert (first.message.message_id, first.born_on) == (again.message.message_id, again.born_on)
    assert str(first.born_on) == "2023-11-14"
    assert first.digest == again.digest != identify(SOURCE, record(*own, body=b"c"), orderly=True).digest


@pytest.mark.parametrize("value", [b"", b"rubbish", b"\xff\xfe", None])
def test_a_record_without_a_usable_id_is_named_by_its_place(value: bytes | None) -> None:
    plain = identify(SOURCE, record(), orderly=True)
    found = identify(SOURCE, record(("outbox-id", value)), orderly=True)
    assert found.message.message_id == plain.message.message_id
    assert isinstance(found.message.message_id, UUID)
    assert found.message.message_id != identify(SOURCE, record(offset=1), orderly=True).message.message_id
    assert str(found.born_on) == "2023-11-14"


@pytest.mark.parametrize("born", [b"-5", b"99999999999999999999", b"1e3", b"\xff", None, b"9" * 15])
def test_an_id_without_a_time_of_birth_has_one_day_whenever_it_is_published(born: bytes | None) -> None:
    own = ("outbox-id", b"6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11")
    found = identify(SOURCE, record(own, ("outbox-born-at", born)), orderly=True)
    again = identify(SOURCE, record(own)._replace(timestamp=1_800_000_000_000), orderly=True)
    assert str(found.born_on) == str(again.born_on) == "1970-01-01"
    assert str(found.message.born_at.date()) == "2023-11-14"


@pytest.mark.parametrize(
    ("due", "day", "is_delayed"),
    [
        (b"1700784000000", "2023-11-24", True),
        (b"1699900000000", "2023-11-14", True),  # before it was born: it was never delayed
        (b"-62135596800000", "2023-11-14", False),
        (b"soon", "2023-11-14", False),
        (b"9" * 15, "2023-11-14", False),
        (None, "2023-11-14", False),
    ],
)
def test_a_delayed_message_has_the_day_on_which_it_was_due(
    due: bytes | None, day: str, is_delayed: bool
) -> None:
    own = (
        ("outbox-id", b"6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11"),
        ("outbox-born-at", b"1699999999999"),
        ("outbox-deliver-at", due),
    )
    found = identify(SOURCE, record(*own), orderly=True)
    assert str(found.born_on) == str(born_on(found.message)) == day
    assert str(found.message.born_at.date()) == "2023-11-14"
    assert (found.message.deliver_at is not None) is is_delayed


def test_a_time_at_which_it_was_due_dates_no_message_without_an_id_or_a_birth() -> None:
    due = ("outbox-deliver-at", b"1700784000000")
    foreign = identify(SOURCE, record(due), orderly=True)
    assert str(foreign.born_on) == str(born_on(foreign.message)) == "2023-11-14"
    unborn = identify(
        SOURCE, record(("outbox-id", b"6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11"), due), orderly=True
    )
    assert str(unborn.born_on) == str(born_on(unborn.message)) == "1970-01-01"


def test_the_first_header_of_a_name_counts() -> None:
    headers = (("outbox-tags", b"a||b"), ("outbox-tags", b"c"), ("outbox-keys", b"o-1 o-2"))
    message = identify(SOURCE, record(*headers), orderly=True).message
    assert (message.tags, message.keys) == (("a", "b"), ("o-1", "o-2"))
    assert (message.header("outbox-tags"), message.header("no")) == (b"a||b", None)
    assert pairs_of(None) == ()
    assert pairs_of({"a": "b"}) == (("a", b"b"),)


def test_a_record_without_a_key_has_no_order() -> None:
    assert identify(SOURCE, record()._replace(key=None), orderly=True).order_key is None
    assert identify(SOURCE, record(), orderly=False).order_key is None
    long = identify(SOURCE, record()._replace(key=b"k" * 300), orderly=True).order_key
    assert long is not None
    assert len(long) == 39
    assert long != identify(SOURCE, record()._replace(key=b"k" * 301), orderly=True).order_key


def test_failures_of_one_cause_have_one_fingerprint() -> None:
    def fail(number: int) -> str:
        try:
            raise ValueError(f"order {number} has no customer 'c-{number}'")
        except ValueError as error:
            return describe(error).fingerprint

    assert fail(1) == fail(22)
    assert fail(1).startswith("ValueError at ")
    assert fail(1).endswith("fail: order ? has no customer ?")


def test_a_failure_can_be_stored_whatever_its_text_holds() -> None:
    failure = describe(ValueError("a\0b \udcff"))
    assert "\0" not in failure.error + failure.fingerprint
    assert failure.error.encode()


def test_a_server_that_is_away_is_not_the_messages_fault() -> None:
    assert is_infrastructure(psycopg.OperationalError("connection refused"))
    assert is_infrastructure(psycopg.errors.AdminShutdown())
    assert is_infrastructure(psycopg.errors.SerializationFailure())
    assert not is_infrastructure(psycopg.errors.UniqueViolation())
    assert not is_infrastructure(ConnectionError("of something else"))


@pytest.mark.parametrize(
    "kafka",
    [
        {},
        {"bootstrap.servers": "k", "group.id": "g"},
        {"bootstrap.servers": "k", "isolation.level": "read_uncommitted"},
        {"bootstrap.servers": "k", "enable.auto.commit": "true"},
        {"bootstrap.servers": "k", "auto.offset.reset": "earliest"},
    ],
)
def test_settings_of_kafka_that_break_a_promise_are_refused(kafka: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"allowed: |leave it out"):
        check_kafka(kafka)


@pytest.mark.parametrize(
    "options", [{"group": ""}, {"group": "a b"}, {"workers": 0}, {"timeout": 0.0}, {"on_gap": "ask"}]
)
def test_settings_out_of_range_are_refused(options: dict[str, object]) -> None:
    member_of("g", {"t": "*"})
    with pytest.raises(ConfigurationError, match="allowed: "):
        member_of(**{"group": "g", "topics": {"t": "*"}, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [{}, {"no topic!": "*"}, {"t": "a ||"}])
def test_a_subscription_that_makes_no_sense_is_refused(topics: dict[str, str]) -> None:
    with pytest.raises(InvalidSubscriptionError, match="allowed: "):
        subscription_of(topics)


def test_a_start_without_a_time_zone_is_refused() -> None:
    from datetime import datetime

    with pytest.raises(ConfigurationError, match="with a time zone"):
        ConsumeFrom.timestamp(datetime(2026, 1, 1))


def test_an_error_that_repeats_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(repeats, "monotonic", lambda: now)
    errors = repeats.Repeats()
    assert errors.level("head", logging.ERROR) == logging.ERROR
    now += 59
    assert errors.level("head", logging.ERROR) == logging.DEBUG
    assert errors.level("other") == logging.WARNING
    now += 1
    assert errors.level("head", logging.ERROR) == logging.ERROR
