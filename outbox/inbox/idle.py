"""Whether Kafka has given this member partitions, and since when it has not."""

from __future__ import annotations

import logging
from time import monotonic

log = logging.getLogger("outbox.inbox")
IDLE_S = 60.0
"""Seconds without a partition after which that is reported, as in `groups` of consumers.sql; a rebalance takes less."""


class IdleWatch:
    """Logs once, each time that the member is without partitions for a minute."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since: float | None = monotonic()
        """Since when the member reads no partition; None: it reads some."""
        self._is_logged = False

    def changed(self, partitions: int, now: float | None = None) -> bool:
        """Note how many partitions are read; return whether there were none before and are some now, or the reverse.

        Args:
            partitions: that the member reads.
            now: by the monotonic clock.
        """
        now = monotonic() if now is None else now
        if partitions:
            changed, self._since, self._is_logged = self._since is not None, None, False
            return changed
        if self._since is None:
            self._since = now
            return True
        if not self._is_logged and now - self._since >= IDLE_S:
            self._is_logged = True
            log.warning(
                "group %s: this member has read no partition for %.0f s: its topics have fewer partitions than the "
                "group has members, or Kafka has assigned none; next: outbox consumers show %s",
                self._group,
                now - self._since,
                self._group,
            )
        return False
