"""The lane of a message: which owner publishes it, by a hash of what its order hangs on.

The library states the lane in the row, so that the table's trigger need not check what was checked here already.
It is the function `outbox.lane_of` of the schema once more; a test holds the two together.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import count

LANES = 8
"""Lanes of an outbox; a power of two."""
_next = count().__next__


def lane_of(topic: str, queue: int | None, arg: bytes | None) -> int:
    """Return 0 to 7: the same for the same topic and explicit queue, else for the same topic and order key.

    Messages with neither have no order and take the lanes in turn.
    """
    if queue is not None:
        named = f"{topic}/{queue}".encode()
    elif arg is not None:
        named = topic.encode() + b":" + arg
    else:
        return _next() & 7
    return sha256(named).digest()[0] & 7
