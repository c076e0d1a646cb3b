"""Sabotage: a transport that loses, doubles or swaps one message, to show that the proof would notice.

It stands between what the consumer read and the proof. Offsets are numbered again, so that only the messages
themselves can betray it. It doubles a message as a broken broker would: again, right away, under the same message
id; at-least-once delivery allows that after a crash of the relay only.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from outbox_local.demo.journal import Record


class Sabotage(StrEnum):
    """What is done to one message."""

    DROP = "drop"
    DOUBLE = "double"
    SWAP = "swap"
    """With the next one of the same aircraft: those of different aircraft may change places."""


class NothingToSabotageError(ValueError):
    """There is no message to which it could be done."""


def sabotage(records: Iterable[Record], kind: Sabotage, seed: int) -> list[Record]:
    """Do it to one message, chosen by the seed among those that were read once."""
    done = list(records)
    read = Counter(record.value for record in done)
    once = [place for place, record in enumerate(done) if read[record.value] == 1]
    pairs = _neighbours(done, once) if kind is Sabotage.SWAP else [(place, place) for place in once]
    if not pairs:
        raise NothingToSabotageError(f"there is nothing to {kind} among {len(done)} records")
    first, second = random.Random(f"{seed} {kind}").choice(pairs)  # noqa: S311 (no secret)
    if kind is Sabotage.DROP:
        del done[first]
    elif kind is Sabotage.DOUBLE:
        done.insert(first, done[first])
    else:
        a, b = done[first], done[second]
        done[first] = a._replace(key=b.key, value=b.value, headers=b.headers)
        done[second] = b._replace(key=a.key, value=a.value, headers=a.headers)
    return list(_numbered(done))


def _neighbours(records: list[Record], once: list[int]) -> list[tuple[int, int]]:
    """Places of messages and of the next one of the same key."""
    pairs = []
    last: dict[str | None, int] = {}
    for place in once:
        key = records[place].key
        if key in last:
            pairs.append((last[key], place))
        last[key] = place
    return pairs


def _numbered(records: Iterable[Record]) -> Iterator[Record]:
    following: Counter[int] = Counter()
    for record in records:
        yield record._replace(offset=following[record.partition])
        following[record.partition] += 1
