"""The part of a session that leaves partitions out which hold nothing to publish, and marks how far the sweep goes."""

from __future__ import annotations

from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.stops import Stops
from outbox_relay.publisher.upkeep import Upkeep, mark_of
from outbox_relay.text.logs import Log

log = Log("relay")


class PartitionsDone:
    """Retires live partitions, once a second."""

    _lease: Lease
    _partitions: LivePartitions
    _reader: Reader
    _recorder: Recorder
    _publisher: Publisher
    _upkeep: Upkeep
    _stops: Stops
    _groups: list[Group]
    _pages: list[Page]

    def _retire(self) -> None:
        """Leave partitions out of the statement that hold nothing to publish any more."""
        newest = self._reader.newest
        if self._recorder.withheld.lanes:
            return  # what is claimed of them waits in no row
        if self._pages or not self._partitions.live or self._partitions.live[0].upper > newest:
            # Pages that are read and not published still need their partitions.
            return
        floors = [group.progress.floor for group in self._groups]
        floors += [progress.floor for progress in self._stops.progress()]
        read = {lane for group in self._groups for lane in group.lanes}
        on_the_wire = self._publisher.in_flight or self._publisher.aside
        # A batch is recorded in one row per partition, so its partitions must still be known then. A lane that no group
        # reads may be on its way to another relay, and be kept after all.
        floors += [
            known.floor
            for lane, known in self._recorder.recorded.items()
            if on_the_wire or (lane not in read and lane not in self._stops)
        ]
        left = self._partitions.retire(newest, self._reader.here(), floors)
        if left:
            log.info("partitions done", tables=left, live=list(self._partitions.tables))

    def _mark(self) -> None:
        """Tell the sweep which lanes are recorded as published up to one snapshot."""
        levels = {
            lane: known
            for lane, known in self._recorder.recorded.items()
            if lane not in self._stops and lane not in self._recorder.withheld.lanes
        }
        mark = mark_of(levels, self._partitions.live, of=len(self._lease.lanes))
        if mark is not None:
            self._upkeep.mark(mark)
