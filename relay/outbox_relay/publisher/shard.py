"""What a relay is started for: the shard that it may lead, and the guarantee with which it delivers.

A shard is of neighbouring lanes, where several relays divide those of a database by configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from outbox.partitioning.lanes import LANES
from outbox_relay.text.errors import OptionError

REPAIR = f"expected I/N with I from 1 to N and N from 1 to {LANES}, such as 1/2; 1/1 is all of the database"


_FORM = re.compile(r"([0-9]{1,3})/([0-9]{1,3})")


class Guarantee(StrEnum):
    """What a relay promises about each message."""

    AT_LEAST_ONCE = "at-least-once"
    """It is published, and again where it is not known whether Kafka has it."""
    EXACTLY_ONCE = "exactly-once"
    """Kafka's transactions hold the messages: who reads committed messages gets each once."""


class ShardError(OptionError):
    """The text names no shard."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of this number, from 1 on, of so many."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a shard as `--shard` states it.

        Args:
            text: number and count, such as 1/2.

        Raises:
            ShardError: it has another form, or there is no such shard.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ShardError(f"{text!r} is not a shard; {REPAIR}")
        shard = cls(int(found[1]), int(found[2]))
        if not 1 <= shard.count <= LANES:
            raise ShardError(f"{text!r} divides the {LANES} lanes of a database by {shard.count}; {REPAIR}")
        if not 1 <= shard.number <= shard.count:
            raise ShardError(f"{text!r}: there is no shard {shard.number} of {shard.count}; {REPAIR}")
        return shard

    @property
    def lanes(self) -> frozenset[int]:
        """Its lanes: those of all shards of a count are disjoint, and cover all."""
        first, end = (number * LANES // self.count for number in (self.number - 1, self.number))
        return frozenset(range(first, end))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


ALL_LANES = Shard()
"""The only shard of a database that is not divided."""
