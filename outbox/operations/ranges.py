"""The range of ids that a statement about one message names, so that its plan has the partition of that range alone.

A kept plan of a statement with nothing but `id = $1` has all partitions of `outbox.message`, and each execution locks
and opens every one of them: with 24 partitions a decision cost two and a half times what it cost with three. A range of
literal ids around the message leaves its partition, or two, and is true of the message wherever partitions begin.
See docs/adr/0006-a-half-message-is-decided-once.md.
"""

from __future__ import annotations

from functools import lru_cache

IDS = 1_000_000
"""How many ids a range has: a session prepares a statement again for each. A default partition holds five or more."""


def within_range(statement: str, row_id: str) -> str:
    """Return a statement with the range of a message in place of `{range}`.

    Args:
        statement: of `outbox/sql`.
        row_id: the message's `id`, a whole number.
    """
    return _filled(statement, (int(row_id) - 1) // IDS)


@lru_cache(maxsize=64)
def _filled(statement: str, number: int) -> str:
    first = number * IDS + 1
    return statement.replace("{range}", f"id >= {first} AND id < {first + IDS}")
