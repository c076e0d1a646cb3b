"""Message queue selectors: which partition of its topic a message goes to.

RocketMQ calls this `MessageQueueSelector.select(queues, message, arg)`. The built-in ones need nothing but the
row, so the relay evaluates them, over the partition count pinned in `outbox.topic`. A custom one is Python of
the application: it is evaluated when the message is sent, and its answer is stored in the row as `queue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from outbox.errors import ConfigurationError, SelectorError
from outbox.partitioning.murmur2 import murmur2

if TYPE_CHECKING:
    from outbox.message import Message

MURMUR2 = "murmur2"
MODULO = "modulo"
RANDOM = "random"
ROUND_ROBIN = "round_robin"
BUILT_IN = (MURMUR2, MODULO, RANDOM, ROUND_ROBIN)

Arg: TypeAlias = bytes | str | int | None
MessageQueueSelector: TypeAlias = Callable[[int, "Message", Any], int]
"""Called as (queues, message, arg): the number of partitions, the message, and its order key as it was given (its
key, when it has no order key). Answers a partition, 0 … queues-1. It is called inside the caller's transaction
and must be quick; the same arg should give the same answer, else order is lost."""


def partition_of(selector: str | None, arg: bytes | None, partitions: int, spread: int = 0) -> int:
    """Compute the partition that a built-in selector picks: what the relay calls for each message without `queue`.

    Args:
        selector: The row's `selector`; None is murmur2 where there is an arg, else round-robin.
        arg: The row's `order_key`, or its `key` where that is null.
        partitions: The topic's pinned partition count.
        spread: What spreads messages without order: a counter per topic gives exact round-robin, a row's id an
            answer that is the same each time. Selector `random` scrambles it first.

    Raises:
        SelectorError: the selector is no built-in, or modulo is given no whole number.
    """
    if selector is None or selector == MURMUR2:
        return murmur2(arg) % partitions if arg is not None else spread % partitions
    if selector == MODULO:
        return whole_number(arg) % partitions
    if selector == ROUND_ROBIN:
        return spread % partitions
    if selector == RANDOM:
        return murmur2(spread.to_bytes(16, "little", signed=True)) % partitions
    raise SelectorError(
        "selector", f"{selector!r} is no built-in and the row names no queue", _list(BUILT_IN)
    )


def whole_number(arg: bytes | None) -> int:
    """Read modulo's arg: a whole number in decimal text.

    Negative ones are allowed; Python's remainder is never negative, so -1 of 4 queues is 3.

    Raises:
        SelectorError: it is missing or something else; the text shows it.
    """
    if arg is None:
        raise SelectorError(
            "order_key", "selector 'modulo' has nothing to divide", "a whole number as order_key or key"
        )
    digits = arg[1:] if arg[:1] in (b"-", b"+") else arg
    if not digits.isdigit() or len(digits) > 40:
        shown = repr(arg[:40].decode("utf-8", "backslashreplace"))
        raise SelectorError(
            "order_key", f"selector 'modulo' cannot divide {shown}", "a whole number in at most 40 digits"
        )
    return int(arg)


class Selectors:
    """The selectors that one `Outbox` knows: the built-in names and the application's own."""

    def __init__(self, custom: Mapping[str, MessageQueueSelector] | None = None) -> None:
        """Check names and callables once, so that a typing error stops the application's start, not a send.

        Raises:
            ConfigurationError: a name is taken, empty or no text, or its selector cannot be called.
        """
        self._custom = dict(custom or {})
        for name, function in self._custom.items():
            if not name or "\0" in name:
                raise ConfigurationError(f"selectors: {name!r} is no name; allowed: text without NUL")
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
            SelectorError: the name is neither built in nor registered, or modulo is given no whole number.
        """
        known = (*BUILT_IN, *self._custom)
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise SelectorError("selector", f"{name!r} is not registered{hint}", _list(known))
        if name == MODULO:
            whole_number(arg)

    def choose(self, name: str, queues: int, message: Message, arg: Arg) -> int:
        """Call a custom selector; whatever it raises passes through.

        Raises:
            SelectorError: the answer is no partition of the topic.
        """
        queue: object = self._custom[name](queues, message, arg)
        if isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue < queues:
            raise SelectorError(
                "selector",
                f"{name!r} answered {queue!r} for topic {message.topic!r}",
                f"a whole number from 0 to {queues - 1}",
            )
        return queue


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
