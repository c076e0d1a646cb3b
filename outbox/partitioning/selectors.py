"""The built-in message queue selectors: which partition of its topic a message goes to.

RocketMQ calls this `MessageQueueSelector.select(queues, message, arg)`. The built-in selectors need nothing but the
row, so the relay evaluates them over the partition count pinned in `outbox.topic`. The application's own selectors are
in `outbox.operations.custom_selectors`.
"""

from __future__ import annotations

from typing import TypeAlias

from outbox.errors import SelectorError
from outbox.partitioning.murmur2 import murmur2

MURMUR2 = "murmur2"
MODULO = "modulo"
RANDOM = "random"
ROUND_ROBIN = "round_robin"
BUILT_IN = (MURMUR2, MODULO, RANDOM, ROUND_ROBIN)

Arg: TypeAlias = bytes | str | int | None


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
        "selector", f"{selector!r} is no built-in and the row names no queue", ", ".join(BUILT_IN)
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
