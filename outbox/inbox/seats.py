"""The threads of a member that run listeners, each in its seat: one that ends, or is given up, is replaced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from outbox.inbox.batches import Batching
from outbox.inbox.core.hands import Running
from outbox.inbox.delivery_threads import DeliveryThread
from outbox.inbox.failures import timed_out
from outbox.inbox.repeats import Repeats
from outbox.inbox.retry_threads import RetrySearch, RetryThread
from outbox.inbox.threads import ListenerThread, Runtime

log = logging.getLogger("outbox.inbox")
MOST_GIVEN_UP = 5
"""Listeners that never return; with more of them the member ends."""


class Seats:
    """The threads of one member. The keeper calls `watch` every second."""

    def __init__(self, group: str, batching: Batching | None, stop: Callable[[], None]) -> None:
        """Prepare without threads.

        Args:
            group: the name of the group.
            batching: how messages are put together; None: each is run alone.
            stop: ends the member.
        """
        self._group, self._batching, self._stop = group, batching, stop
        self._search, self._repeats = RetrySearch(), Repeats()
        self._threads: list[ListenerThread] = []
        self._runtime: Runtime | None = None
        self._changing = threading.Lock()
        self.is_ending = False
        """Nothing is replaced once the member ends."""
        self._lost: list[ListenerThread] = []
        """Threads that were given up and whose listeners have not returned."""
        self.failure: str | None = None
        """Why the member has to end."""

    @property
    def given_up(self) -> int:
        """How many listeners ran past their time-out and have not returned."""
        return sum(thread.is_alive() for thread in self._lost)

    def start(self, runtime: Runtime, workers: int, retry_workers: int) -> None:
        """Start the threads."""
        self._runtime = runtime
        for number in range(workers):
            self._threads.append(DeliveryThread(f"outbox-listener-{number}", runtime, self._batching))
        for number in range(retry_workers):
            self._threads.append(RetryThread(f"outbox-retry-{number}", runtime, self._search))
        for thread in self._threads:
            thread.start()

    def watch(self) -> list[int]:
        """Replace threads that ended, and those whose listeners run past their time-out; return the latters' sessions.

        A thread that is given up stays in its place until another one has started, which inherits its work: the system
        may refuse to start one for now. It is tried again at the next call.

        At the end of the member nothing is replaced: what still runs comes again after the next assignment.
        """
        sessions: list[int] = []
        with self._changing:
            if (runtime := self._runtime) is None:
                return sessions
            for place, thread in enumerate(self._threads):
                with runtime.work:
                    running = thread.watch.give_up(monotonic(), runtime.timeout)
                if running is not None:
                    backend, server = running.session
                    if server == runtime.server.accepted:  # else the number is of another session there
                        sessions.append(backend)
                    self._note_lost(thread, running, runtime.timeout)
                elif thread.is_alive() and not thread.watch.given_up:
                    continue
                if not self.is_ending and self.failure is None:
                    self._replace(place, thread, runtime)
        return sessions

    def _replace(self, place: int, lost: ListenerThread, runtime: Runtime) -> None:
        replacement = self._replacement(lost, runtime)
        try:
            replacement.start()
        except RuntimeError as error:
            level = self._repeats.level("start")
            log.log(level, "a thread of the consumer is not replaced yet: %s; trying again", error)
        else:
            self._threads[place] = replacement

    def _replacement(self, lost: ListenerThread, runtime: Runtime) -> ListenerThread:
        if isinstance(lost, DeliveryThread):
            with runtime.work:
                heir = lost.hands.successor(timed_out(runtime.timeout) if lost.watch.given_up else None)
            return DeliveryThread(lost.name, runtime, self._batching, heir)
        assert isinstance(lost, RetryThread)  # noqa: S101  (there are no others)
        left = lost.current if lost.watch.given_up else lost.left
        return RetryThread(lost.name, runtime, self._search, left)

    def _note_lost(self, thread: ListenerThread, running: Running, timeout: float) -> None:
        # Those whose session ended have returned, and hold nothing any more.
        self._lost = [*(lost for lost in self._lost if lost.is_alive()), thread]
        log.error(
            "the listener of %s has run for more than %g s and is given up",
            running.delivery.message.message_id,
            timeout,
        )
        if len(self._lost) > MOST_GIVEN_UP:
            self.failure = f"group {self._group!r}: {len(self._lost)} listeners never returned"
            self._stop()

    def end(self, seconds: float) -> None:
        """End all threads, and wait so long for them together: their messages may be another member's by now."""
        with self._changing:
            self.is_ending = True
            for thread in self._threads:
                thread.end()
        until = monotonic() + seconds
        for thread in self._threads:
            if not thread.watch.given_up:
                thread.join(max(0.0, until - monotonic()))
