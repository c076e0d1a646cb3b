"""The topic registry: which message a topic takes, and how long a registration is remembered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox import Message, MessageType, Topic
from outbox.errors import InvalidTopicError, WrongMessageTypeError
from outbox.operations.topics import TopicCache, register, require_type, type_of
from outbox.statements import Plan, Rows, Statement, TextArray

LATER = datetime(2030, 1, 1, tzinfo=UTC)
PLAIN = Message("t")
KEYED = Message("t", key="k")
ORDERED = Message("t", key="k", order_key="o")
DELAYED = Message("t", key="k", order_key="o", deliver_at=LATER)


def topic(message_type: str, name: str = "t") -> Topic:
    return Topic(name, MessageType(message_type), 4, None, 1_048_588)


@pytest.mark.feature("S-74")
@pytest.mark.parametrize(
    ("message", "options", "type"),
    [
        (PLAIN, {}, "NORMAL"),
        (KEYED, {}, "NORMAL"),
        (KEYED, {"ordered": True}, "FIFO"),
        (ORDERED, {}, "FIFO"),
        (DELAYED, {}, "DELAY"),
        (DELAYED, {"half": True}, "TRANSACTION"),
    ],
)
def test_type_of_a_message(message: Message, options: dict[str, bool], type: str) -> None:
    assert type_of(message, **options) == type


@pytest.mark.feature("S-74")
@pytest.mark.parametrize(
    ("message_type", "message", "options"),
    [
        ("NORMAL", PLAIN, {}),
        ("NORMAL", KEYED, {}),
        ("FIFO", KEYED, {}),
        ("FIFO", KEYED, {"ordered": True}),
        ("FIFO", ORDERED, {}),
        ("DELAY", DELAYED, {}),
        ("TRANSACTION", KEYED, {"half": True}),
        *(("MIXED", message, {}) for message in (PLAIN, KEYED, ORDERED, DELAYED)),
    ],
)
def test_topic_takes_messages_of_its_type(
    message_type: str, message: Message, options: dict[str, bool]
) -> None:
    require_type(topic(message_type), message, **options)


@pytest.mark.feature("S-74")
@pytest.mark.parametrize(
    ("message_type", "message", "options", "given"),
    [
        ("NORMAL", ORDERED, {}, "FIFO"),
        ("NORMAL", KEYED, {"ordered": True}, "FIFO"),
        ("NORMAL", DELAYED, {}, "DELAY"),
        ("NORMAL", KEYED, {"half": True}, "TRANSACTION"),
        ("FIFO", PLAIN, {}, "NORMAL"),
        ("FIFO", DELAYED, {}, "DELAY"),
        ("FIFO", ORDERED, {"half": True}, "TRANSACTION"),
        ("DELAY", KEYED, {}, "NORMAL"),
        ("DELAY", DELAYED, {"half": True}, "TRANSACTION"),
        ("TRANSACTION", KEYED, {}, "NORMAL"),
    ],
)
def test_topic_refuses_other_types_and_names_both(
    message_type: str, message: Message, options: dict[str, bool], given: str
) -> None:
    error = f"topic: 't' is of type {message_type}, the message of type {given}; allowed: "
    with pytest.raises(WrongMessageTypeError, match=error):
        require_type(topic(message_type), message, **options)


def looked_up(cache: TopicCache, rows: Rows, *names: str) -> tuple[dict[str, Topic | None], list[Statement]]:
    """Run a look-up against these rows; answer what it found and which statements it needed."""
    return ran(cache.lookup(names), rows)


def ran(plan: Plan[Any], *answers: Rows) -> tuple[Any, list[Statement]]:
    statements: list[Statement] = []
    pending = iter(answers)
    try:
        statements.append(next(plan))
        while True:
            statements.append(plan.send(next(pending)))
    except StopIteration as done:
        return done.value, statements


ROW = ("a", "FIFO", 4, "modulo", 1000)


def test_all_topics_of_a_call_are_read_in_one_statement_and_remembered() -> None:
    cache = TopicCache()
    found, statements = looked_up(cache, [ROW], "a", "b")
    assert found == {"a": Topic("a", MessageType.FIFO, 4, "modulo", 1000), "b": None}
    assert [statement.params for statement in statements] == [(TextArray(["a", "b"]),)]
    assert looked_up(cache, [], "a", "b") == (found, [])


def test_a_remembered_topic_is_read_again_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("outbox.operations.topics.time.monotonic", lambda: now)
    cache = TopicCache()
    looked_up(cache, [ROW], "a", "b")
    now += 5.1
    assert [s.params for s in looked_up(cache, [], "a", "b")[1]] == [(TextArray(["b"]),)]
    now += 55.0
    assert [s.params for s in looked_up(cache, [ROW], "a")[1]] == [(TextArray(["a"]),)]


def test_names_without_end_do_not_fill_the_memory() -> None:
    cache = TopicCache()
    for n in range(12):
        looked_up(cache, [], *(f"t{n}-{i}" for i in range(1000)))
    assert len(cache._entries) <= 10_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a/b", 4, "NORMAL", 1000, None), "topic: 'a/b' is not a legal Kafka topic name"),
        (("a", 0, "NORMAL", 1000, None), "partitions: 0; allowed: a whole number from 1"),
        (("a", True, "NORMAL", 1000, None), "partitions: True; allowed"),
        (
            ("a", 4, "ORDERED", 1000, None),
            "message_type: 'ORDERED' is not a message type; expected NORMAL, FIFO",
        ),
        (("a", 4, "FIFO", -1, None), "max_message_bytes: -1; allowed"),
        (("a", 4, "FIFO", 1000, ""), "selector: ''; allowed: murmur2, modulo"),
    ],
)
def test_topic_cannot_be_registered_with(arguments: Any, error: str) -> None:
    with pytest.raises(InvalidTopicError, match=error):
        next(register(*arguments))


def test_another_partition_count_is_refused_because_it_moves_keys() -> None:
    with pytest.raises(InvalidTopicError, match="topic 'a' is pinned to 4, not 8; allowed: 4"):
        ran(register("a", 8, "FIFO", 1000, None), [], [ROW])
