"""Reading back: what a leader finds in Kafka of the messages in doubt that a page has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.publisher.core.values import Page
from tests.support.core_search.world import Name

if TYPE_CHECKING:
    from tests.support.core_search.leader import Leader


class ReadingBack:
    """What one leader reads of partitions: each once, when it is needed first, behind what former leaders recorded."""

    def __init__(self, leader: Leader, *, is_unclean: bool) -> None:
        """Begin with nothing read."""
        self._leader = leader
        self.is_unclean = is_unclean
        self._recorded = dict(leader.w.postgres.db.offsets)
        self._logs: dict[Name, dict[int, int]] = {}

    def of_page(self, page: Page) -> None:
        """Let the core know what Kafka has of a page, before it gets the page."""
        leader = self._leader
        for row in page.rows:
            is_in_doubt = row.in_doubt or (page.read.compare and self.is_unclean)
            if leader.w.setting.reads_back and is_in_doubt:
                name = (row.topic, leader.core.topics.partition(row))
                if name not in self._logs:
                    self._logs[name] = self._read(name)
                offset = self._logs[name].get(int(str(row.content)))
                leader.core.read_back.add(*name, {} if offset is None else {row.id: offset})

    def _read(self, name: Name) -> dict[int, int]:
        w = self._leader.w
        start = 0 if "read back from the beginning" in w.flags else self._recorded.get(name, -1) + 1
        log = [(offset, one.uid) for offset, one in enumerate(w.log) if (one.topic, one.partition) == name]
        if w.setting.reads_back != "all":
            log = self._deleted(log, 7 * self._leader.epoch % (len(w.log) + 1))
        return {uid: offset for offset, uid in log if offset >= start}

    def _deleted(self, log: list[tuple[int, int]], until: int) -> list[tuple[int, int]]:
        """Return what is left when Kafka has deleted records up to an offset: all, or all but the last of each key."""
        keys = {uid: key for uid, _, key in self._leader.w.postgres.order}
        compacts = self._leader.epoch % 2
        last = {keys.get(uid): offset for offset, uid in log if offset < until} if compacts else {}
        return [(offset, uid) for offset, uid in log if offset >= until or last.get(keys.get(uid)) == offset]
