"""Lanes that stopped at a message that cannot be published: where, why, and when each is tried again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from outbox.backoff import Backoff
from outbox_relay.publisher.batch import Stop
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.lane_groups import Careful
from outbox_relay.publisher.snapshot import Progress
from outbox_relay.text.logs import Log

log = Log("relay")

RETRY_FIRST_S = 2.0
RETRY_LAST_S = 60.0
NOT_AGAIN = float("inf")
"""When a lane is tried again that is on its way back already."""


@dataclass(slots=True)
class Stopped:
    """A stopped lane, when it is tried again (seconds, monotonic), and how far it then goes carefully."""

    stop: Stop
    retry_at: float
    backoff: Backoff
    careful: Careful


class Stops:
    """The stopped lanes of a session; each is known until it has caught up: it may stop at its message again."""

    def __init__(self) -> None:
        self._stopped: dict[int, Stopped] = {}

    def __contains__(self, lane: int) -> bool:
        return lane in self._stopped

    def add(self, stop: Stop, *, careful: Careful) -> None:
        """Note a stop. The same again is tried after twice the time, up to a minute."""
        before = self._stopped.get(stop.lane)
        same = before is not None and str(before.stop.reason) == str(stop.reason)
        backoff = before.backoff if before is not None and same else Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        pause = backoff.next()
        self._stopped[stop.lane] = Stopped(stop, time.monotonic() + pause, backoff, careful)
        log.error(
            "lane stopped",
            lane=stop.lane,
            message_id=stop.message_id,
            reason=str(stop.reason),
            retry_in_s=pause,
        )

    def due(self, now: float) -> list[Stopped]:
        """The lanes to try again by now."""
        return [stopped for stopped in self._stopped.values() if now >= stopped.retry_at]

    def hurry(self, lanes: Iterable[int]) -> None:
        """Let stopped lanes be tried again now, and soon again if that fails."""
        for lane in lanes:
            stopped = self._stopped.get(lane)
            if stopped is not None and stopped.retry_at != NOT_AGAIN:
                stopped.retry_at = 0.0
                stopped.backoff.reset()

    def known(self, lanes: Iterable[int]) -> set[int]:
        """Those of the lanes that have stopped and are not forgotten."""
        return self._stopped.keys() & set(lanes)

    def forget(self, lanes: Iterable[int]) -> None:
        """Leave out lanes that have caught up."""
        for lane in lanes:
            del self._stopped[lane]

    def keep_recorded(self, recorded: Mapping[int, Progress]) -> None:
        """Leave out lanes whose stop is not what is recorded of them."""
        self._stopped = {
            lane: stopped
            for lane, stopped in self._stopped.items()
            if recorded[lane] == stopped.stop.progress
        }

    def progress(self) -> Iterator[Progress]:
        """How far each of the lanes is published."""
        return (stopped.stop.progress for stopped in self._stopped.values())

    def certain(self, doubts: Doubts) -> set[int]:
        """The lanes whose message is certainly not in Kafka, also those on their way back."""
        stops = (stopped.stop for stopped in self._stopped.values())
        return {
            one.lane
            for one in stops
            if not one.in_flight and not doubts.covers(one.lane, one.position, one.message_id)
        }

    def now(self) -> dict[int, Stop]:
        """The lanes that are stopped now, with where and why; not those on their way back."""
        return {
            lane: stopped.stop for lane, stopped in self._stopped.items() if stopped.retry_at != NOT_AGAIN
        }
