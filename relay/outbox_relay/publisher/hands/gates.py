"""Which topics are open: what operators ask for, and what Kafka and the registry list, begins and ends holds."""

from __future__ import annotations

import time
from collections import Counter
from typing import cast

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Scope
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.hands.rows import TopicCount
from outbox_relay.publisher.hands.topic_watch import Found, TopicWatch, Tried
from outbox_relay.publisher.hands.transactional import TransactionalWires
from outbox_relay.publisher.hands.wires import Wires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.records import UNNAMED, Topic
from outbox_relay.text.logs import Log

NO_TRIES: Tried = {}
MOST_RELEASED = 200
"""Held keys and messages of a topic that are drained at a time because somebody asked for it."""

log = Log("relay")


class Gates:
    """Opens and closes topics for the core."""

    def __init__(
        self, core: Core, topics: TopicWatch, writes: Writes, wires: Wires | TransactionalWires
    ) -> None:
        """Begin without a request."""
        self._core = core
        self._topics = topics
        self._writes = writes
        self._wires = wires

    def look(self, now: float) -> None:
        """Take what operators asked for, and what Kafka and the registry list of topics."""
        requests = self._read_requests() if self._writes.holds.by_scope else {}
        tried = {**requests, **{scope: requests.get(scope) for scope in self._core.holds.due(now)}}
        held = {scope.topic for scope in self._core.holds.by_scope if scope.kind == "topic"}
        # Read first: what is known of a topic may be what was wrong.
        self.meet(*self._topics.tend(tried, held))

    def _read_requests(self) -> dict[Scope, float]:
        """Return what somebody asked to release, but what is released already, or cannot be yet.

        That is what is of a closed topic, behind a wider hold, or more than a topic may have at once: each write looks
        at all that is released.
        """
        holds = self._core.holds
        released = {scope for scope in holds.by_scope if holds.is_requested(scope)}
        of_topic = Counter(scope.topic for scope in released)
        passed = [
            scope
            for scope in self._writes.holds.by_scope
            if scope.topic in self._topics.closed
            or scope in released
            or (scope.kind in ("key", "message") and of_topic[scope.topic] >= MOST_RELEASED)
            or holds.is_covered(scope)
        ]
        requested = self._writes.holds.requested(passed)
        for scope in [scope for scope in requested if scope.topic.endswith(UNNAMED)]:
            self._writes.holds.act({scope: requested.pop(scope)})
            holds.release(scope)  # Kafka cannot be asked about it
        return requested

    def meet(self, found: Found, tried: Tried = NO_TRIES) -> None:
        """Use what was read of topics, and release the holds that were to be tried when that began."""
        now = time.monotonic()
        for name, topic in found.items():
            self._topics.unlisted.discard(name)
            if isinstance(topic, Unpublishable):
                self._close(name, topic, now)
                continue
            count = cast("TopicCount | None", self._core.topics.counts.get(name))
            streams = self._core.streams
            used = (self._wires.open(one) for one in (streams.main, streams.single))
            if (
                count is not None
                and count[0] < topic.partitions
                and not all(one.lists(topic) for one in used)
            ):
                self._topics.unlisted.add(name)
                continue
            was_closed = name in self._topics.closed
            self._topics.note(name, topic)
            self._core.set_count(name, (topic.partitions, topic.selector))
            skipping = self._core.topics.skip_ahead - {name}
            self._core.topics.skip_ahead = skipping | {name} if topic.skip_ahead else skipping
            self._try_again(topic, tried, now, was_closed=was_closed)

    def _try_again(self, topic: Topic, tried: Tried, now: float, *, was_closed: bool) -> None:
        """Release the holds of a topic that Kafka takes messages of again."""
        due = self._core.holds.due(now)
        mine = {
            scope: asked_at
            for scope, asked_at in tried.items()
            if scope.topic == topic.name and (asked_at is not None or scope in due)
        }
        self._writes.holds.act(mine)
        whole = Scope("topic", topic.name)
        if was_closed or whole in mine:
            self._core.holds.release(whole, is_resumed=True)
        for scope in mine:  # those first that were asked for first
            if scope == whole:
                continue
            if scope.kind == "partition" and scope.part in topic.leaderless | topic.short:
                self._core.holds.fail(scope, now)
            else:
                self._core.holds.release(scope)

    def _close(self, name: str, reason: Unpublishable, now: float) -> None:
        """Hold a topic that takes no message."""
        self._topics.note(name, reason)
        scope = Scope("topic", name)
        self.explain(scope, str(reason))
        if reason.code == "TOPIC_PAUSED":
            self._core.pause(name)
            return
        self._core.unavailable(name, None, now)
        if self._writes.holds.empty([scope]):
            self._core.holds.drop_row(scope)  # all that waited was given up; what comes waits, too

    def hold_topic(self, name: str, reason: str, now: float) -> None:
        """Hold a topic that Kafka lists, and takes no message of. It is tried again by a producer of its own."""
        scope = Scope("topic", name)
        self.explain(scope, reason)
        self._core.streams.suspect(name)
        self._core.unavailable(name, None, now)

    def explain(self, scope: Scope, reason: str) -> None:
        """Note, and log once, why something is held; a request to release it is over."""
        if scope not in self._core.holds.by_scope:
            log.error(f"{scope.kind} is held", topic=scope.topic, reason=reason)
        self._writes.holds.errors[scope] = reason
        self._writes.unrequested.add(scope)

    @property
    def behind(self) -> list[str]:
        """Return the topics whose messages do not go by what was read of them last.

        A topic moves, no producer knows its new partitions yet, or a message of a paused one is on its way.
        """
        core = self._core
        paused = {name for name, why in self._topics.closed.items() if why.code == "TOPIC_PAUSED"}
        sent = {name for name in paused if core.streams.has_sent(name) or self._wires.may_deliver(name)}
        return sorted({*core.topics.moving, *self._topics.unlisted, *sent})
