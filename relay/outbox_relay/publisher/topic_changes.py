"""Topics whose keys move to other partitions: when a session begins to use a changed partition count or selector.

An operator changes the registry under load (`outbox topic repartition`). In one partition the producer keeps the order
of a key; between two partitions only an acknowledgement does. Three rules keep it, and no relay waits for another:

1. A session uses a change of a topic when none of that topic's messages is unacknowledged in it, in flight or set
   aside. So each session publishes each key without a gap, from a place that is recorded or in front of it, and every
   message is appended before the next one begins. Of several such runs the first appearances are in order, however
   they mix.
2. A session reads the topics again after it has taken lanes, and before it publishes from them. Their last owner read
   the registry before this one took them, so this one knows what that one knew: a key that has moved does not go back.
3. The registry changes under the lock of the topic's row, and `outbox.topic_generation` in the same transaction.

Schedules, between any two lines. The change is one step in memory, so what matters is the wire:

- The process dies with messages of the older count on the wire. Its successor reads the newer one (rule 2) and
  publishes what was not recorded. What the dead producer still delivers are copies: a run of its own, in order.
- The process is paused past its lease with such messages on the wire, or between its poll or barrier and producing,
  and wakes up. The same; until it is refused at its next poll or barrier its run may be ahead of its successor's.
  Then a message may appear first in an old partition although one in front of it appeared first in a new one: later,
  and so in order.
- It dies or is paused after the change: nothing of the older count is on its wire.
- An acknowledgement stays out. Its lane is set aside, and the topic stays with the older count until it comes, or
  until the lane stops and the producer is replaced; other topics flow. Was the topic read for lanes that were just
  taken, the older count would take their keys back: the session starts over with a new producer, which has nothing on
  the wire.
- The lane stops for good (see aside.py): what it had on the wire may arrive until the producer is closed, as copies.
  Its next try is a run that begins at the stop.
- A message fails and parks its key: everything in front of it is acknowledged before the change. What is held behind
  it is drained by the count of that moment; a drain is on the wire as any other batch.
- Delayed messages are new rows when they are due. A message that names its queue stays there.
- The topic could not be published to for a while, was paused, or was forgotten: the count that this producer last used
  of it is remembered, because its messages may be on the wire. A change that waited when it closed is not used: the
  look-up that finds it open brings it again.
- The producer does not list the new partitions yet (it reads its metadata every five minutes): it is asked to, and the
  change waits for that; else it would refuse the messages. Where no message may go out meanwhile, it is replaced soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.topic import Topic

ASK_EVERY_S = 1.0
"""How often a producer is asked to read the partitions of a changed topic that it does not list yet."""
STUCK_S = 3.0
"""A topic that nothing may be published to waits so long for its change; then the session starts over."""

Rule = tuple[int, str | None]
"""What decides where a key goes: partition count and selector."""


def _rule(topic: Topic) -> Rule:
    return topic.partitions, topic.selector


class TopicChanges:
    """The changes that one producer knows of and does not use yet."""

    def __init__(self) -> None:
        self.on_the_wire: Callable[[], Collection[str]] = tuple
        """The topics with messages that are not acknowledged."""
        self.lists: Callable[[Topic], bool] = _always
        """Whether the producer knows all partitions of a topic."""
        self._used: dict[str, Rule] = {}
        self._waiting: dict[str, Topic] = {}
        self._listed: set[str] = set()
        """Those of the waiting ones whose partitions the producer lists."""
        self._ask_at = 0.0
        self.awaited: frozenset[str] = frozenset()
        """Topics of which nothing may be published before their change is used."""
        self._awaited_since = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def admits(self, topic: Topic) -> bool:
        """Return whether what was read of a topic may be used at once; if not, it waits for `take`."""
        name = topic.name
        if self._used.setdefault(name, _rule(topic)) == _rule(topic):
            self.forget(name)
            return True
        if name not in self._waiting or _rule(self._waiting[name]) != _rule(topic):
            self.await_change(topic)
        return False

    def await_change(self, topic: Topic) -> None:
        """Note a change that is used once nothing of its topic is unacknowledged."""
        self._listed.discard(topic.name)
        self._waiting[topic.name] = topic

    def await_these(self, names: Iterable[str]) -> None:
        """Let these topics not be published to until their changes are used."""
        if not self.awaited:
            self._awaited_since = time.monotonic()
        self.awaited |= self._waiting.keys() & set(names)

    def take(self) -> list[Topic]:
        """Return the changed topics that are used from now on: nothing of them is unacknowledged."""
        if not self._waiting:
            return []
        self._ask()
        on_the_wire = self.on_the_wire() if self._listed else ()
        taken = [self._waiting[name] for name in self._listed if name not in on_the_wire]
        for topic in taken:
            self._used[topic.name] = _rule(topic)
            self.forget(topic.name)
        return taken

    def held_up(self, aside: Collection[str]) -> bool:
        """Return whether a change waits for acknowledgements that will come soon: for none of a lane set aside.

        Args:
            aside: the topics with messages in lanes that are set aside.
        """
        return any(name not in aside for name in self._listed)

    def stuck(self, aside: Collection[str]) -> frozenset[str]:
        """Return the awaited topics that will not be used soon by this producer.

        Args:
            aside: the topics with messages in lanes that are set aside.
        """
        if self.awaited and time.monotonic() - self._awaited_since > STUCK_S:
            return self.awaited
        return self.awaited.intersection(aside)

    def require_listed(self) -> None:
        """Refuse to publish to awaited topics whose partitions the producer does not list yet.

        Raises:
            KafkaUnavailableError: naming the topics; it is tried again soon.
        """
        if unlisted := self.awaited - self._listed:
            raise KafkaUnavailableError(
                "the brokers do not list all partitions yet of the changed topics: "
                + ", ".join(sorted(unlisted))
            )

    def forget(self, name: str) -> None:
        """Let no change of a topic wait any more; what was used of it last is still known.

        Also where the topic is paused, or cannot be published to, since the change was read: the change would open it.
        """
        self._waiting.pop(name, None)
        self._listed.discard(name)
        self.awaited -= {name}

    def _ask(self) -> None:
        now = time.monotonic()
        if now < self._ask_at:
            return
        for name, topic in self._waiting.items():
            if name not in self._listed:
                if self.lists(topic):
                    self._listed.add(name)
                else:
                    self._ask_at = now + ASK_EVERY_S


def _always(topic: Topic) -> bool:
    return True
