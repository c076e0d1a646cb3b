"""What the relay keeps in memory of an order key that is parked."""

from __future__ import annotations

import hashlib

LONGEST_TOPIC = 249
"""Characters of the name of a topic that can be parked; Kafka has none that is longer."""
LONGEST_KEY = 1_000
"""Bytes of an order key that is kept as it is; see `kept`."""
FIRST_BYTES = LONGEST_KEY + 1 - hashlib.sha256().digest_size
"""Those that are kept of a longer key, in front of its hash."""


def kept(order_key: bytes | None) -> bytes | None:
    """Return what stands for an order key in memory: of a long one its first bytes and its SHA-256.

    All that are parked are in memory, and a key may have 64 MiB. What stands for a long key has one byte more than any
    that is kept as it is, so that the two cannot be equal. `keys` and `requested` in parked.sql return the same.
    """
    if order_key is None or len(order_key) <= LONGEST_KEY:
        return order_key
    return order_key[:FIRST_BYTES] + hashlib.sha256(order_key).digest()
