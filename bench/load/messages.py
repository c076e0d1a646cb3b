"""The messages of the latency benchmark: JSON of about 220 B that begins with its number."""

from __future__ import annotations

HEAD = b'{"n":%012d,'
NUMBER = slice(5, 17)
REST = (
    b'"customer":"customer-4711","status":"created","currency":"EUR","amount":"123.45",'
    b'"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you"}'
)
KEYS = 10_000


def body(number: int) -> bytes:
    """The body of a message."""
    return HEAD % number + REST


def number_of(content: bytes) -> int:
    """The number that a body begins with."""
    return int(content[NUMBER])


def key(number: int) -> bytes:
    """The key of a message; neighbours have different ones."""
    return b"order-%d" % (number * 7919 % KEYS)
