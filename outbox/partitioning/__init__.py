"""Which partition and which lane a message belongs to: selectors, murmur2 and the lanes of the relay."""

from outbox.partitioning.selectors import partition_of

__all__ = ["partition_of"]
