"""Where a partition is read from when it is assigned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from outbox.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ConsumeFrom:
    """Where a group begins that has no position in a topic: `FIRST`, `LAST`, or `ConsumeFrom.timestamp(…)`.

    It is never used again once the group has a position: neither in PostgreSQL nor in Kafka.
    """

    milliseconds: int | None
    """Messages published at this time and later; None: see `is_first`."""
    is_first: bool = False

    @classmethod
    def timestamp(cls, moment: datetime) -> ConsumeFrom:
        """Begin with the messages that were published at this moment or later.

        Raises:
            ConfigurationError: The moment has no time zone, or lies before 1970.
        """
        if moment.tzinfo is None or moment < _EPOCH:
            raise ConfigurationError(
                f"consume_from: {moment!r}; allowed: a datetime with a time zone, from 1970 on"
            )
        return cls(int(moment.timestamp() * 1000))

    def __str__(self) -> str:
        if self.milliseconds is None:
            return "FIRST" if self.is_first else "LAST"
        return datetime.fromtimestamp(self.milliseconds / 1000, UTC).isoformat()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = ConsumeFrom(None, is_first=True)
LAST = ConsumeFrom(None)


@dataclass(frozen=True, slots=True)
class Known:
    """What Kafka knows of a partition when it is assigned."""

    low: int
    """The first offset that is still there."""
    high: int
    """The next offset."""
    committed: int | None
    """The offset of the group."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins."""

    offset: int
    reason: str
    gap: tuple[int, int] | None = None
    """Offsets from, up to and without, that the group has not handled and Kafka does not have."""


def decide_start(position: int | None, known: Known, *, is_missing: bool = False) -> Start:
    """Decide where a partition is read from.

    The lower of both offsets wins. Kafka's is never stored before the one in PostgreSQL, so if it is the higher
    one, the database was restored, or somebody moved the group by a tool of Kafka; reading again is always
    safe, because the inbox refuses what is done. A partition without either offset is new to a group that is
    not, and read from its beginning. So is one that PostgreSQL has no position of although it has those of other
    partitions: whatever Kafka's offset states was done, the database does not have it.

    Args:
        position: the group's offset in PostgreSQL.
        known: what Kafka knows.
        is_missing: Whether there is no position, and the group has others in the topic.
    """
    if position is None and is_missing:
        return Start(known.low, "PostgreSQL has positions of other partitions only")
    offsets = [offset for offset in (position, known.committed) if offset is not None]
    if not offsets:
        return Start(known.low, "the partition is new")
    offset = min(offsets)
    if known.committed is None:
        reason = "Kafka has no offset of the group"
    elif position is None:
        reason = "PostgreSQL has no position of the group"
    elif known.committed > position:
        reason = "Kafka's offset is ahead of PostgreSQL: reading again what the database does not have"
    elif known.committed < position:
        reason = "Kafka's offset is behind PostgreSQL: it was set back, or was not stored yet"
    else:
        reason = "as stored"
    if offset < known.low:
        return Start(known.low, reason, (offset, known.low))
    if offset > known.high:
        return Start(known.low, reason, (known.high, offset))
    return Start(offset, reason)
