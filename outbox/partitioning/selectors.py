"""The built-in message queue selectors: which partition of its topic a message goes to.

RocketMQ calls this `MessageQueueSelector.select(queues, message, arg)`. The built-in selectors need nothing but the
row, so the relay evaluates them over the partition count pinned in `outbox.topic`. The application's own selectors are
in `outbox.operations.custom_selectors`.
"""

from __future__ import annotations

from typing import TypeAlias
from zlib import crc32

from outbox.errors import SelectorError
from outbox.partitioning.java_hash import java_hash
from outbox.partitioning.murmur2 import murmur2

MURMUR2 = "murmur2"
MODULO = "modulo"
RANDOM = "random"
ROUND_ROBIN = "round_robin"
JAVA_HASH = "java_hash"
"""RocketMQ's `SelectMessageQueueByHash` with a String as argument."""
CRC32 = "crc32"
"""librdkafka's partitioner `consistent`, which is also its default for records with a key."""
BUILT_IN = (MURMUR2, MODULO, RANDOM, ROUND_ROBIN, JAVA_HASH, CRC32)
HASHES = (MURMUR2, JAVA_HASH, CRC32)
"""The selectors that hash the order key or, where it is null, the key."""

Arg: TypeAlias = bytes | str | int | None


def partition_of(selector: str | None, arg: bytes | None, partitions: int, spread: int = 0) -> int:
    """Compute the partition that a built-in selector picks: what the relay calls for each message without `queue`.

    A hash without an arg spreads the messages.

    Args:
        selector: The row's `selector`; None is murmur2 where there is an arg, else round-robin.
        arg: The row's `order_key`, or its `key` where that is null.
        partitions: The topic's pinned partition count.
        spread: What spreads messages without order: a counter per topic gives exact round-robin, a row's id a
            partition that is the same each time. Selector `random` scrambles it first.

    Raises:
        SelectorError: the selector is not built in, modulo is given no whole number, or java_hash no text.
    """
    if selector is None or selector == MURMUR2:
        return murmur2(arg) % partitions if arg is not None else spread % partitions
    if selector == CRC32:
        return crc32(arg) % partitions if arg is not None else spread % partitions
    if selector == JAVA_HASH:
        # Java's remainder has the sign of the hash; RocketMQ takes its absolute value, also of -2³¹.
        return abs(java_hash(java_text(arg))) % partitions if arg is not None else spread % partitions
    if selector == MODULO:
        return whole_number(arg) % partitions
    if selector == ROUND_ROBIN:
        return spread % partitions
    if selector == RANDOM:
        return murmur2(spread.to_bytes(16, "little", signed=True)) % partitions
    raise SelectorError(
        "selector", f"{selector!r} is not a built-in selector, and the row has no queue", ", ".join(BUILT_IN)
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


def java_text(arg: bytes) -> str:
    """Decode java_hash's arg: the UTF-8 of the String that a Java producer gave to its selector.

    Raises:
        SelectorError: it is not UTF-8, or contains NUL, which PostgreSQL cannot check; the text shows it.
    """
    try:
        text = arg.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        shown = repr(arg[:40].decode("utf-8", "backslashreplace"))
        raise SelectorError(
            "order_key",
            f"selector 'java_hash' cannot hash {shown}",
            "valid UTF-8 without NUL as order_key or key",
        )
    return text


def require_arg(selector: str, arg: bytes | None) -> None:
    """Refuse an arg that a built-in selector cannot work with. No arg is a topic's default selector's to spread.

    Raises:
        SelectorError: modulo is given no whole number, or java_hash no text.
    """
    if selector == MODULO:
        whole_number(arg)
    elif selector == JAVA_HASH and arg is not None:
        java_text(arg)
