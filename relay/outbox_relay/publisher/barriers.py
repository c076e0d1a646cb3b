"""The part of a session that makes the barrier of what was read, and records what is acknowledged.

In steady state both cost no round trip. The poll itself returns whether its rows need a barrier ("secured" in
finder.sql). That is asked once: if the answer is no, a barrier is made at once, and it is the record of what is
acknowledged. Where the rows of the last polls needed one, the record travels behind the poll (see recorder.py), so the
barrier is there when the rows are. Where they needed none, a record is one flush more, so it is made for what
`RECORD_S` or `RECORD_MESSAGES` bring together, behind a poll that probably finds little. See docs/adr/0130.

Schedules of what is acknowledged and waits for its record; it stays in flight, as what is not acknowledged:

- The process dies, loses its session, or is paused past its lease: its successor publishes it again, as what is on the
  wire.
- A delivery fails: what is acknowledged in front of it is recorded first, as ever. So it is when the relay is stopped,
  a key is drained, or a message goes alone: each waits until nothing is in flight, and records it.
- A lane is to be given back, or set aside, or lanes are in several groups: nothing waits from that turn on.
- A topic moves: that waits for what is not acknowledged only. The process dies behind the move and before the record:
  its successor publishes what was acknowledged again, by the new count of partitions; first appearances are in order.
- No message follows: the loop goes on polling, and the first poll after twice that time takes the record along.

Schedules of a page whose poll found all flushed and the lanes ours, and that is published without a barrier:

- PostgreSQL dies after the poll's answer: what the poll saw was on disk by then, so it comes back with it. The session
  ends at its next statement, and with it all progress in memory; the next one starts from what is recorded.
- The relay is paused behind the answer, and its lanes are taken: after `FRESH_S` it makes a barrier, which finds the
  other epoch. A pause behind that check is as one behind a barrier: what it publishes then was read before the take, so
  its successor publishes it as well, and takes it for doubtful.
- The page waits for a later turn (a topic, room, a full queue): the answer is forgotten, and a barrier is made.
- A topic had to be read for the page: the same. What was read of the registry may be younger than what is flushed.
- Something was acknowledged that could not travel with the poll: where polls take none along, it is recorded whatever
  the poll found.
- A claim, a drain, a stop is to be written: each is a flushed commit of its own, as without this.
- Standbys are named while the relay runs: each session reads the setting for itself, so a poll may miss it for as long
  as the reload takes to reach this session, and publish what was committed in that moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.delayed import Delayed
from outbox_relay.publisher.finder import WAITING
from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.parked import KeyDrain
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.recovery import naming_defects

FRESH_S = 0.25
"""For how long the barrier of a page holds that was made with its poll: the lanes were ours then."""
RECORD_S = 0.02
"""How long after a record the next one waits for more, in steady state. A relay that dies repeats what waits. From then
on it waits for a turn behind one that found something, as long again at most: what a poll with a record finds waits for
its flush."""
RECORD_MESSAGES = 100
"""So many acknowledged messages wait for no more."""


class Barriers:
    """Makes barriers and records, with the polls where that can be."""

    _publisher: Publisher
    _recorder: Recorder
    _reader: Reader
    _partitions: LivePartitions
    _delayed: Delayed
    counts: Counts
    _groups: list[Group]
    _drain: KeyDrain | None
    _leaving: frozenset[int]
    _polled_at = 0.0
    _noted_at = 0.0
    """When something was recorded last."""
    _has_found = False
    """Whether the last turn found something."""
    _sends_along = False
    """Whether what is acknowledged is recorded with the polls: this turn had one that could take it along."""

    def _read(self, groups: list[Group], of_lists: int) -> list[Page]:
        """Read a page of each group; what is acknowledged by now is recorded with the poll, or by a later barrier."""
        acknowledged, rider = list[Batch](), None
        self._sends_along = self._recorder.may_send_along and self._reader.polls_once(groups)
        if self._sends_along and self._is_due():
            acknowledged = self._publisher.take_acknowledged()
        with _ending_spans(acknowledged):
            if acknowledged:
                with naming_defects():
                    rider = self._recorder.send_along(acknowledged, self._partitions.bounds())
            # Before it is sent: the process may be paused for longer than its lease while the answer is on its way.
            self._polled_at = time.monotonic()
            pages = list(self._reader.read(groups, of_lists=of_lists, rider=rider))
            if acknowledged:
                self._note(acknowledged, self._recorder.land())
        return pages

    def _secure(self, pages: list[Page]) -> bool:
        """Make the barrier, with what there is to record; return whether the pages may be published after it."""
        is_made = time.monotonic() - self._polled_at < FRESH_S and all(page.has_barrier for page in pages)
        acknowledged = self._publisher.take_acknowledged() if not is_made or self._is_due() else []
        # Also if there is something to record: where several groups are polled nothing travels with the polls.
        if acknowledged or not is_made:
            self._commit(acknowledged, barrier=True)
        waiting = [row[WAITING] for page in pages for row in page.rows if row[WAITING] is not None]
        if waiting:
            self._delayed.expect(min(waiting))
        return is_made or self._recorder.barrier_counts()

    def _record(self) -> None:
        acknowledged = self._publisher.take_acknowledged()
        if acknowledged:
            self._commit(acknowledged)

    def _commit(self, acknowledged: Sequence[Batch], *, barrier: bool = False) -> None:
        with _ending_spans(acknowledged), naming_defects():
            messages = self._recorder.commit(acknowledged, self._partitions.bounds(), barrier=barrier)
        self._note(acknowledged, messages)

    def _is_due(self) -> bool:
        """Return whether what is acknowledged is recorded now, whether or not a barrier is needed."""
        messages = self._publisher.note_acknowledged()
        return (
            not self._is_steady
            or not self._reader.expects_flushed
            or messages >= RECORD_MESSAGES
            or self._since_record >= (RECORD_S if self._has_found else 2 * RECORD_S)
        )

    @property
    def _since_record(self) -> float:
        """Seconds since something was recorded."""
        return time.monotonic() - self._noted_at

    @property
    def _is_steady(self) -> bool:
        """Whether one statement polls what is read, no lane is set aside or to be given back, and no key is drained."""
        return (
            self._sends_along
            and len(self._groups) == 1
            and self._drain is None
            and not self._leaving
            and not self._publisher.aside
        )

    def _note(self, acknowledged: Sequence[Batch], messages: int) -> None:
        self.counts.recorded += messages
        self._noted_at = time.monotonic()
        for batch in acknowledged:
            if batch.messages:
                self.counts.acknowledged(batch.since, batch.acknowledged_at, batch.born)
                self.counts.batches += 1
            if batch.span is not None:
                batch.span.end()


@contextmanager
def _ending_spans(batches: Sequence[Batch]) -> Iterator[None]:
    """End the spans of batches that it is not learned of whether they are recorded: the session ends, too."""
    try:
        yield
    except BaseException:
        for batch in batches:
            if batch.span is not None:
                batch.span.end("not_recorded")
        raise
