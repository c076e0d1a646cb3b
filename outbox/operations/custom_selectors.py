"""The application's own message queue selectors: Python functions that choose a message's partition.

The library calls a custom selector when the message is sent, and stores the result in the row's column `queue`. An
application registers it by name on its `Outbox`, or gives it to one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from outbox.errors import ConfigurationError, SelectorError
from outbox.message import Message
from outbox.partitioning.selectors import BUILT_IN, Arg, require_arg
from outbox.validation import LONGEST_TEXT, exact

MessageQueueSelector: TypeAlias = Callable[[int, Message, Any], int]
"""Called as (queues, message, arg): the number of partitions, the message, and its order key as it was given (its
key, when it has no order key). Returns a partition, 0 … queues-1. It is called inside the caller's transaction
and must be quick; the same arg should give the same partition, or order is lost."""


class Selectors:
    """The selectors that one `Outbox` knows: the built-in names and the application's own."""

    def __init__(self, custom: Mapping[str, MessageQueueSelector] | None = None) -> None:
        """Check names and callables once, so that a typing error stops the application's start, not a send.

        Raises:
            ConfigurationError: a name is taken, empty or contains NUL, or its selector cannot be called.
        """
        self._custom = {exact(name): each for name, each in (custom or {}).items()}
        for name, function in self._custom.items():
            if not name or "\0" in name:
                raise ConfigurationError(
                    f"selectors: {name!r} is not a valid name; allowed: text of at least one character, without NUL"
                )
            if name in BUILT_IN:
                raise ConfigurationError(f"selectors: {name!r} is built in; choose another name")
            if not callable(function):
                raise ConfigurationError(
                    f"selectors: {name!r} is {type(function).__name__}; allowed: a callable (queues, message, arg)"
                )

    def is_custom(self, name: str) -> bool:
        """Whether the selector is evaluated at send."""
        return name in self._custom

    def require_usable(self, name: str, arg: bytes | None) -> None:
        """Refuse a selector, the message's or its topic's, that could not place the message.

        Raises:
            SelectorError: the name is neither built in nor registered, or a built-in one cannot work with the arg.
        """
        known = (*BUILT_IN, *self._custom)
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise SelectorError("selector", f"{name!r} is not registered{hint}", ", ".join(known))
        require_arg(name, arg)

    def choose(self, name: str, queues: int, message: Message, arg: Arg) -> int:
        """Call a custom selector; whatever it raises passes through.

        Raises:
            SelectorError: the result is not a partition of the topic.
        """
        return evaluate(self._custom[name], name, queues, message, arg)


def evaluate(selector: MessageQueueSelector, name: str, queues: int, message: Message, arg: Arg) -> int:
    """Call a selector; whatever it raises passes through.

    Raises:
        SelectorError: the result is not a partition of the topic.
    """
    queue: object = selector(queues, message, arg)
    if isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue < queues:
        raise SelectorError(
            "selector",
            f"{name!r} returned {queue!r} for topic {message.topic!r}",
            f"a whole number from 0 to {queues - 1}",
        )
    return queue


def require_selector(selector: object) -> str:
    """Check the selector of one call, and return the name that the row keeps: that of the function or the class.

    Raises:
        ConfigurationError: it cannot be called.
    """
    if not callable(selector) or isinstance(selector, type):
        raise ConfigurationError(
            f"selector: is {type(selector).__name__}; allowed: a callable (queues, message, arg). "
            "The name of a selector goes into Message(selector=…)"
        )
    name = getattr(selector, "__name__", type(selector).__name__)
    return str(name).replace("\0", "")[:LONGEST_TEXT] or type(selector).__name__
