"""How a session goes on after a failed delivery or an error of its own: from what is recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from outbox.backoff import Backoff
from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.batch import Stop
from outbox_relay.publisher.errors import (
    BrokenError,
    DeliveryError,
    KafkaUnavailableError,
    OutOfOrderError,
    Refused,
    Unpublishable,
)
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.lane_groups import Care, Group, by_progress, care_of, of_lane
from outbox_relay.publisher.lease import Lease, LeaseLostError
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.snapshot import BEGINNING
from outbox_relay.publisher.stops import Stops
from outbox_relay.text.logs import Log

PAUSE_FIRST_S = 0.05
PAUSE_LAST_S = 5.0
CALM_S = 10.0
"""After a failed delivery the next producer waits; longer each time, until this long nothing failed."""
BROKEN_PAUSE_LAST_S = 60.0
"""The longest pause after an error of the relay's own: each start over publishes again what was not recorded."""

# What PostgreSQL, Kafka and other relays do, and what the relay itself deals with.
_PASSED_ON = (
    DeliveryError, LeaseLostError, KafkaUnavailableError, KafkaSettingError, DatabaseUnreachableError, psycopg.Error,
)  # fmt: skip
_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

log = Log("relay")


@contextmanager
def naming_defects() -> Iterator[None]:
    """Turn an error that no outside event explains into BrokenError, with the place where it was raised.

    Only while messages are published and recorded: ended there, the relay would be started again and would publish
    the same messages again, as fast as a supervisor can.
    """
    try:
        yield
    except _PASSED_ON:
        raise
    except _DEFECTS as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise BrokenError(
            f"internal error in {frame.name} ({frame.filename}:{frame.lineno}): {text}", {}
        ) from error


def regroup(
    groups: Iterable[Group],
    stops: Stops,
    recorder: Recorder,
    refused: Mapping[int, Refused],
    hash_of: Callable[[str], int],
    *,
    behind: Collection[int],
) -> list[Group]:
    """Put the lanes into groups that go on from what is recorded.

    Where a message was refused its topic goes on carefully, in that lane; if it did so already, the lane stops. With no
    progress that is recorded all topics do: the list of what has no publication holds all of them.
    A lane that had stopped and was being tried again begins with a trial.

    Args:
        groups: those before the failure.
        stops: the lanes that have stopped.
        recorder: it knows what is recorded, and records stops.
        refused: the first refused message of each lane.
        hash_of: returns the hash of a topic, by which it is read apart.
        behind: lanes that had not caught up; what is drained of them while they are stopped may lie beyond the stop.
    """
    recorded = recorder.recorded
    careful = care_of(groups)
    # A lane whose stop is not recorded went down with the producer, with messages in front of the one that it
    # stopped at. Reading on from what is recorded, it meets that message again.
    stops.keep_recorded(recorded)
    halted = set(stops.now())
    for lane, one in refused.items():
        care = careful.setdefault(lane, {})
        known, upto = recorded[lane], Care(one.position, one.seen)
        part = None if known.floor == BEGINNING else hash_of(one.topic)
        if part in care or None in care:
            code, _, text = one.reason.partition(": ")
            known = replace(known, is_partial=known.is_partial or lane in behind)
            stop = Stop(lane, known, one.position, one.message_id, Unpublishable(code, text))
            recorder.stop(stop)
            stops.add(stop, careful={None if None in care else part: upto})
            halted.add(lane)
        else:
            care[part] = upto
    going = {lane: known for lane, known in recorded.items() if lane not in halted}
    plain = {lane: known for lane, known in going.items() if lane not in careful and lane not in stops}
    return [
        *by_progress(plain),
        *(
            group
            for lane, known in going.items()
            if lane not in plain
            for group in of_lane(lane, known, careful.get(lane, {}), trial=lane not in careful)
        ),
    ]


class Recovery:
    """The part of a session that starts over after a failed delivery."""

    _publisher: Publisher
    _recorder: Recorder
    _finder: Finder
    _partitions: LivePartitions
    _stops: Stops
    _renewal: Renewal
    _lease: Lease
    _backoff: Backoff
    _groups: list[Group]
    _pages: list[Page]
    _burdened: frozenset[int]
    _behind: set[int]
    _calm_at = 0.0
    stopping: Callable[[], bool]

    def _start_over(self, error: DeliveryError) -> None:
        """Replace the producer after a failed delivery, and go back to what is recorded.

        What was acknowledged in front of the failed message is recorded first. A lane with a message that may have
        been refused goes on carefully, one message at a time: what is refused alone parks. Until then nothing of it
        overtakes the message: librdkafka has stopped.
        """
        now = time.monotonic()
        if now >= self._calm_at:
            self._backoff.reset()
        if error.refused and not isinstance(error, OutOfOrderError):
            pause = PAUSE_FIRST_S  # it names messages, which is progress, and all others wait
        else:
            pause = self._backoff.next(
                BROKEN_PAUSE_LAST_S if isinstance(error, BrokenError) else PAUSE_LAST_S
            )
        self._calm_at = now + pause + CALM_S
        log.error("delivery failed", text=str(error), next_try_in_s=pause)
        self._discard(error)
        refused = self._park_refused(error.refused)
        behind = frozenset(self._behind)
        self._reload_keys(self._lease.lanes)
        self._pages = []
        self._groups = regroup(
            self._groups, self._stops, self._recorder, refused, self._finder.hash_of_topic, behind=behind
        )
        self._stop_reading()
        self._burdened = frozenset()
        self._partitions.revive()
        self._publisher = self._open_publisher()
        self._rest(pause)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopping():
            self._renewal.beat()
            self.balance()
            time.sleep(0.01)

    def balance(self) -> None:
        """Take and give back lanes; see SharedLanes."""
        raise NotImplementedError

    def _discard(self, error: DeliveryError | None) -> None:
        raise NotImplementedError

    def _open_publisher(self) -> Publisher:
        raise NotImplementedError

    def _park_refused(self, refused: Mapping[int, Refused]) -> dict[int, Refused]:
        raise NotImplementedError

    def _reload_keys(self, lanes: frozenset[int]) -> None:
        raise NotImplementedError

    def _stop_reading(self) -> None:
        raise NotImplementedError
