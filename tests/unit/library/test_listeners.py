"""The registry of listeners: who is found for a message, and what may not be registered."""

from __future__ import annotations

from typing import Any, cast

import pytest

from outbox import Message
from outbox.checking import Listeners
from outbox.checking.listeners import check_of
from outbox.errors import ConfigurationError
from outbox.records import MessageView


class Listener:
    """Answers for a message; told apart by its name."""

    def __init__(self, name: str = "made here") -> None:
        self.name = name

    def check_local_transaction(self, view: Any) -> str:
        return self.name


class Checker:
    """RocketMQ 5.x: a checker."""

    def check(self, view: Any) -> bool:
        return True


def name_found(listeners: Listeners, message: Message) -> str:
    listener = listeners.find(message)
    assert isinstance(listener, Listener)
    return listener.name


@pytest.fixture
def listeners() -> Listeners:
    made = Listeners()
    made.register(Listener("checker"), checker="payment")
    made.register(Listener("tag"), topic="orders", tag="created")
    made.register(Listener("topic"), topic="orders")
    made.register(Listener("default"))
    return made


@pytest.mark.feature("S-62")
@pytest.mark.parametrize(
    ("message", "found"),
    [
        (Message("orders:created", checker="payment"), "checker"),
        (Message("orders:created"), "tag"),
        (Message("orders:paid||created"), "tag"),
        (Message("orders:paid"), "topic"),
        (Message("orders"), "topic"),
        (Message("flights:created"), "default"),
    ],
)
def test_the_most_specific_listener_is_found(listeners: Listeners, message: Message, found: str) -> None:
    assert name_found(listeners, message) == found


@pytest.mark.feature("S-63")
@pytest.mark.parametrize(
    "name", ["os.system", "builtins:eval", "tests.unit.library.test_listeners.Listener", "Payment"]
)
def test_a_checker_nobody_registered_finds_nobody(listeners: Listeners, name: str) -> None:
    message = Message("orders:created", checker=name)
    assert listeners.find(message) is None
    assert repr(name) in listeners.explain_missing(message)
    assert "checker 'payment'; topic 'orders', tag 'created'" in listeners.explain_missing(message)


def test_without_a_default_an_unregistered_topic_finds_nobody() -> None:
    listeners = Listeners()
    assert listeners.find(Message("orders:a||b")) is None
    assert listeners.explain_missing(Message("orders:a||b")) == (
        "no listener is registered for topic 'orders' with tags 'a||b'; registered: none"
    )


@pytest.mark.feature("S-60")
def test_two_tags_with_different_listeners_are_an_error_that_names_both() -> None:
    listeners = Listeners()
    listeners.register(Checker(), topic="orders", tag="a")
    listeners.register(Listener(), topic="orders", tag="b")
    with pytest.raises(ConfigurationError, match=r"Checker for tag 'a' and Listener for tag 'b'"):
        listeners.find(Message("orders:a||b"))


def test_two_tags_with_one_listener_are_no_error() -> None:
    listeners, listener = Listeners(), Listener()
    listeners.register(listener, topic="orders", tag="a")
    listeners.register(listener, topic="orders", tag="b")
    assert listeners.find(Message("orders:a||b")) is listener


@pytest.mark.feature("S-60")
@pytest.mark.parametrize(
    "place", [{}, {"checker": "payment"}, {"topic": "orders"}, {"topic": "orders", "tag": "created"}]
)
def test_registering_twice_is_refused(listeners: Listeners, place: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="has Listener already, Checker would be the second"):
        listeners.register(Checker(), **place)


@pytest.mark.feature("S-60")
def test_fifty_listeners_serve_one_application() -> None:
    listeners = Listeners()
    for number in range(50):
        listeners.register(Listener(f"of {number}"), topic="orders", tag=f"tag-{number}")
    for number in range(50):
        assert name_found(listeners, Message(f"orders:tag-{number}")) == f"of {number}"


def test_registering_decorates_classes_and_functions() -> None:
    listeners = Listeners()

    @listeners.register(topic="orders:created")
    class Created(Listener):
        pass

    @listeners.register(checker="payment")
    def payment(view: Any) -> bool:
        return True

    assert isinstance(listeners.find(Message("orders:created")), Created)
    assert listeners.find(Message("any", checker="payment")) is payment


@pytest.mark.parametrize(
    ("listener", "place", "wrong"),
    [
        (object(), {}, "object has nothing to call"),
        (Listener(), {"checker": "payment", "topic": "orders"}, "comes with a topic"),
        (Listener(), {"tag": "created"}, "comes without its topic"),
        (Listener(), {"topic": "or ders"}, "not a legal Kafka topic name"),
        (Listener(), {"checker": ""}, "checker: is empty"),
        (Listener(), {"checker": 7}, "checker: is int"),
    ],
)
def test_what_makes_no_sense_is_refused(listener: Any, place: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        Listeners().register(listener, **place)


@pytest.mark.feature("S-71")
@pytest.mark.parametrize(
    ("listener", "answer"), [(Listener("4.x"), "4.x"), (Checker(), True), (lambda view: False, False)]
)
def test_a_check_has_the_name_of_either_version(listener: Any, answer: Any) -> None:
    check = check_of(listener)
    assert check is not None
    assert check(cast(MessageView, None)) == answer
