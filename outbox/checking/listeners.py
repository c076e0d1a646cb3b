"""The registry of transaction listeners: which one decides a half message, found by the names in its row.

    listeners = Listeners()
    listeners.register(PaymentListener(), checker="payment")

    @listeners.register(topic="orders", tag="created")
    class OrderCreated:
        def execute_local_transaction(self, msg, arg): ...
        def check_local_transaction(self, msg): ...

RocketMQ allows one listener per producer; here an application has as many as it likes, and two for one name are
refused. A name from a row is only compared with the registered ones: it is never imported or evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from outbox import validation
from outbox.errors import ConfigurationError, InvalidMessageError
from outbox.records import MessageView

L = TypeVar("L")

CHECK_METHODS = ("check_local_transaction", "check")
"""What a listener's check is called: in RocketMQ 4.x and in 5.x."""


class Addressed(Protocol):
    """What a listener is found by: a message about to be sent, or a half message read back."""

    @property
    def checker(self) -> str | None:
        """The name of who is asked, or None."""
        ...

    @property
    def topic(self) -> str:
        """The message's topic."""
        ...

    @property
    def tags(self) -> Iterable[str]:
        """Its tags, possibly none."""
        ...


class Place(NamedTuple):
    """What a listener is registered for: a checker's name, or a topic and tag, or a topic, or all the rest."""

    checker: str | None = None
    topic: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        named = [f"{field} {value!r}" for field, value in zip(self._fields, self, strict=True) if value]
        return ", ".join(named) or "the default"


class Listeners:
    """The listeners of one application; register all of them before the first message, then share it freely."""

    def __init__(self) -> None:
        self._registered: dict[Place, Any] = {}

    @overload
    def register(
        self, listener: L, *, checker: str | None = None, topic: str | None = None, tag: str | None = None
    ) -> L: ...

    @overload
    def register(
        self, *, checker: str | None = None, topic: str | None = None, tag: str | None = None
    ) -> Callable[[L], L]: ...

    def register(
        self,
        listener: Any = None,
        *,
        checker: str | None = None,
        topic: str | None = None,
        tag: str | None = None,
    ) -> Any:
        """Register a listener for a checker's name, a topic and tag, a topic, or (nothing given) as the default.

        Args:
            listener: An object with `check_local_transaction(view)` (RocketMQ 4.x) or `check(view)` (5.x), or a
                callable that takes the view; sync or async. A class is made an instance of, without arguments.
                Left out: returns a decorator.
            checker: The name that messages carry in `Message.checker`.
            topic: A topic, or "topic:tag".
            tag: One of the topic's tags.

        Returns:
            What was registered, so that it can decorate a class or a function.

        Raises:
            ConfigurationError: the place is taken or makes no sense, or the listener has nothing to call.
        """
        place = _place(checker, topic, tag)
        if listener is None:
            return lambda listener: self.register(listener, **place._asdict())
        made = listener() if isinstance(listener, type) else listener
        if check_of(made) is None:
            raise ConfigurationError(
                f"listener: {name_of(made)} has nothing to call; allowed: an object with "
                f"{' or '.join(f'{name}(view)' for name in CHECK_METHODS)}, or a callable"
            )
        if place in self._registered:
            raise ConfigurationError(
                f"listener: {place} has {name_of(self._registered[place])} already, {name_of(made)} would be the "
                "second; allowed: one listener for each checker, (topic, tag) and topic, and one default"
            )
        self._registered[place] = made
        return listener

    def find(self, message: Addressed) -> Any | None:
        """Answer who is asked about a message, or None.

        By the checker's name, if it has one: then by nothing else, because another listener would answer about
        something it does not know. Else by (topic, tag), by topic, or the default.

        Raises:
            ConfigurationError: two tags of the message have different listeners.
        """
        found = self._registered
        if message.checker is not None:
            return found.get(Place(checker=message.checker))
        by_tag = [place for tag in message.tags if (place := Place(None, message.topic, tag)) in found]
        for place in by_tag[1:]:
            if found[place] is not found[by_tag[0]]:
                raise ConfigurationError(
                    f"listener: a message for topic {message.topic!r} has two: {name_of(found[by_tag[0]])} for tag "
                    f"{by_tag[0].tag!r} and {name_of(found[place])} for tag {place.tag!r}; allowed: one listener "
                    "for all of its tags, or a checker's name in the message"
                )
        if by_tag:
            return found[by_tag[0]]
        return found.get(Place(topic=message.topic), found.get(Place()))

    def explain_missing(self, message: Addressed) -> str:
        """Describe which listener is missing, and which are registered: the text of an alarm or an error."""
        if message.checker is not None:
            wanted = f"checker {message.checker!r}"
        else:
            tags = "||".join(message.tags)
            wanted = f"topic {message.topic!r}" + (f" with tags {tags!r}" if tags else "")
        there = "; ".join(map(str, self)) or "none"
        return f"no listener is registered for {wanted}; registered: {there[:400]}"

    def registered(self, place: Place) -> Any | None:
        """The listener of exactly this place, or None."""
        return self._registered.get(place)

    def __iter__(self) -> Iterator[Place]:
        return iter(tuple(self._registered))

    def __len__(self) -> int:
        return len(self._registered)


def check_of(listener: Any) -> Callable[[MessageView], Any] | None:
    """The function of a listener that decides a half message, by RocketMQ's 4.x or 5.x name; None without one."""
    for name in CHECK_METHODS:
        method: Callable[[MessageView], Any] | None = getattr(listener, name, None)
        if callable(method):
            return method
    return listener if callable(listener) else None


def name_of(listener: Any) -> str:
    """A listener's name for people: of a function its own, of an object its class's."""
    name = getattr(listener, "__qualname__", None)
    return name if isinstance(name, str) else type(listener).__qualname__


def _place(checker: str | None, topic: str | None, tag: str | None) -> Place:
    topic = validation.exact(topic) if isinstance(topic, str) else topic
    if tag is None and isinstance(topic, str) and ":" in topic:
        topic, _, tag = topic.partition(":")
    if checker is not None and (topic is not None or tag is not None):
        raise ConfigurationError(
            f"checker: {checker!r} comes with a topic or tag; allowed: either, for a checker's name is unique"
        )
    if tag is not None and topic is None:
        raise ConfigurationError(f"tag: {tag!r} comes without its topic; allowed: topic=…, tag=…")
    try:
        if topic is not None:
            topic = validation.topic_name(topic)
        checker = None if checker is None else validation.text("checker", checker)
        tag = None if tag is None else validation.text("tag", tag)
    except InvalidMessageError as error:
        raise ConfigurationError(str(error)) from None
    return Place(checker, topic, tag)
