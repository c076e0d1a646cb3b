"""Kafka's murmur2: the hash that its Java client, and everything that follows it, picks partitions with.

Written from the algorithm (Austin Appleby's MurmurHash2, 32 bits, seed 0x9747b28c, as Kafka's default partitioner
uses it) and proven equal to `org.apache.kafka.common.utils.Utils.murmur2` by golden vectors.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = tuple(Struct(f"<{n}I").unpack_from for n in range(17))
_CACHED_LENGTH = 64


def murmur2(data: bytes) -> int:
    """Hash bytes to 0 … 2³¹-1, as Java's `Utils.toPositive(Utils.murmur2(data))`.

    Keys up to 64 bytes are remembered (the last 65,536 of them, about 15 MB): a topic sees the same keys again and
    again, and a look-up costs a tenth of hashing in Python.
    """
    return _remembered(data) if len(data) <= _CACHED_LENGTH else _hash(data)


def _hash(data: bytes) -> int:
    length = len(data)
    h = _SEED ^ length
    count = length >> 2
    words = _WORDS[count](data) if count < 17 else Struct(f"<{count}I").unpack_from(data)
    for k in words:
        k = k * _M & _MASK  # noqa: PLW2901  (a second name would cost time in the hottest loop)
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if rest := length & 3:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return (h ^ h >> 15) & 0x7FFFFFFF


_remembered = lru_cache(maxsize=65536)(_hash)
