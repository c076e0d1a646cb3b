"""Java's `String.hashCode`, which RocketMQ's `SelectMessageQueueByHash` picks queues with.

The Java language's library defines it: s[0]·31ⁿ⁻¹ + s[1]·31ⁿ⁻² + … + s[n-1] over UTF-16 code units, in 32 bits with a
sign. `tests/integration/library/test_selectors_live.py` compares it with RocketMQ's own class on a JVM.
"""

from __future__ import annotations

from functools import lru_cache
from struct import unpack

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


@lru_cache(maxsize=65536)
def java_hash(text: str) -> int:
    """Hash a text to -2³¹ … 2³¹-1, as Java's `text.hashCode()`. The last 65,536 texts are remembered."""
    units = text.encode("utf-16-be")
    h = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        h = (h * 31 + unit) & _MASK
    return h - 2 * _SIGN if h & _SIGN else h
