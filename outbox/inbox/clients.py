"""The client of Kafka of one member of a group.

One thread alone calls it, because a seek or pause from another one may lose fetched messages. Callbacks only note what
happened and cannot raise: librdkafka would drop the messages that it is just handing over.

Closing a client waits until Kafka has taken the offsets that were handed over, and for a coordinator that may be away,
silent, or not to be found. PostgreSQL has the positions, so nothing is lost if a process ends before that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox.inbox.core.contact import Contact
from outbox.inbox.core.partitions import StoredOffset, TopicPart
from outbox.inbox.repeats import QuietLog, Repeats
from outbox.inbox.settings import Member

log = logging.getLogger("outbox.inbox")
POLL = 0.1
BATCH = 500
PATIENCE = 5.0
"""Seconds to wait for Kafka at the end: it takes the last offsets, and hears that the member leaves its group."""
_CLOSING = "outbox-consumer-closing"
_REPLY_TIME = 1.0
"""Seconds for a reply to the member's own client, which holds up its loop; Kafka has just replied to another one."""
Rebalanced = Callable[[list[TopicPart]], None]


class GroupClient:
    """The client that a member reads Kafka with; a new one takes its place when Kafka has forgotten it."""

    def __init__(
        self, member: Member, contact: Contact, *, assigned: Rebalanced, revoked: Rebalanced, lost: Rebalanced
    ) -> None:
        """Make a client; it joins the group by `subscribe`.

        Args:
            member: of a group.
            contact: notes what is heard of Kafka.
            assigned: called in `poll` with partitions that are this member's from now on.
            revoked: with partitions that another member gets when it returns.
            lost: with partitions that are another member's already.
        """
        self._member, self._contact = member, contact
        self._callbacks = {"on_assign": assigned, "on_revoke": revoked, "on_lost": lost}
        self._repeats = Repeats()
        self.fatal: str | None = None
        """Why Kafka refuses this member for good."""
        self._client = self.made()

    def made(self) -> Consumer:
        """Make a client.

        Raises:
            KafkaException: A setting is wrong, such as a file of certificates that is missing.
        """
        callbacks = {"error_cb": self.on_error, "on_commit": self._on_commit}
        return Consumer({**self._member.librdkafka, **callbacks}, logger=QuietLog(log))

    def subscribe(self) -> None:
        """Join the group."""
        callbacks = {name: self._guarded(name, callback) for name, callback in self._callbacks.items()}
        self._client.subscribe(sorted(self._member.subscription), **callbacks)

    def _guarded(self, name: str, callback: Rebalanced) -> Callable[[Any, list[TopicPartition]], None]:
        """Make a callback that cannot raise: an exception in one loses fetched messages."""

        def called(consumer: Any, partitions: list[TopicPartition]) -> None:
            if _is_closing():
                return
            try:
                if name == "on_assign":
                    consumer.incremental_assign([])  # nothing is read before the offsets are known
                    self._contact.heard(monotonic())
                callback([(each.topic, each.partition) for each in partitions])
            except Exception as error:
                log.exception("a rebalance of group %s", self._member.group)
                self.fatal = self.fatal or f"a rebalance failed: {error}"

        return called

    def on_error(self, error: KafkaError) -> None:
        """Note an error of the client."""
        if _is_closing():
            return
        if error.fatal():
            self.fatal = error.str()
            return
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._contact.lost_brokers(monotonic())
        log.log(self._repeats.level(error.code()), "Kafka: %s", error.str())

    def _on_commit(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        if error is None and not _is_closing():
            self._contact.heard(monotonic())

    # Records --------------------------------------------------------------------------------------------------

    def poll(self) -> Sequence[Message]:
        """Return what was fetched; what came with errors was noted, but for offsets that Kafka does not have."""
        first = self._client.poll(POLL)
        if first is None:
            return ()
        records = []
        for record in (first, *self._client.consume(BATCH - 1, 0)):
            error = record.error()
            if error is None or error.code() == KafkaError._AUTO_OFFSET_RESET:
                records.append(record)
            elif error.fatal():
                self.fatal = error.str()
            else:
                # Such as a topic that does not exist, or that the member may not read.
                log.log(self._repeats.level((record.topic(), error.code())), "Kafka: %s", error.str())
        return records

    def pause(self, places: Iterable[TopicPart]) -> None:
        """Fetch no more of partitions."""
        if placed := _placed(places):
            self._client.pause(placed)

    def resume(self, places: Iterable[TopicPart]) -> None:
        """Fetch partitions again."""
        if placed := _placed(places):
            self._client.resume(placed)

    def assign(self, starts: Mapping[TopicPart, int]) -> None:
        """Read partitions from offsets on."""
        if starts:
            ready = [TopicPartition(*place, offset) for place, offset in starts.items()]
            self._client.incremental_assign(ready)
            # librdkafka keeps the pause of a partition that was given away, and ours is new.
            self._client.resume(ready)

    def unassign(self, places: Iterable[TopicPart]) -> None:
        """Stop reading partitions."""
        self._client.incremental_unassign(_placed(places))

    def positions(self, places: Iterable[TopicPart]) -> dict[TopicPart, int]:
        """Return how far partitions were read, as far as that is known."""
        try:
            found = self._client.position(_placed(places))
        except KafkaException as error:
            log.debug("Kafka: %s", error)
            return {}
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def ends(self, places: Iterable[TopicPart]) -> dict[TopicPart, int]:
        """Return where partitions end, by what was fetched."""
        marks = {
            place: self._client.get_watermark_offsets(TopicPartition(*place), cached=True) for place in places
        }
        return {place: high for place, (_, high) in marks.items() if high >= 0}

    def commit(self, offsets: Sequence[StoredOffset], *, waits: bool) -> None:
        """Store offsets in Kafka that are stored in PostgreSQL."""
        places = [TopicPartition(each.topic, each.part, each.offset) for each in offsets]
        try:
            if waits:
                self._client.commit(offsets=places, asynchronous=False)
            else:
                self._client.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            log.debug("Kafka stores no offsets now, PostgreSQL has them: %s", error)

    # Ends -----------------------------------------------------------------------------------------------------

    def finds_no_broker(self) -> bool:
        """Return whether the client has no broker left, though Kafka replies to others."""
        topic = next(iter(self._member.subscription))
        try:
            return not self._client.list_topics(topic, timeout=_REPLY_TIME).brokers
        except KafkaException as error:
            log.debug("Kafka: %s", error)
            return True

    def replace(self, give_away: Callable[[], None]) -> None:
        """Replace a client that Kafka does not know any more; see docs/adr/0019.

        Args:
            give_away: gives the partitions that it has away, in the old one: they are lost.
        """
        try:
            new = self.made()
        except KafkaException as refusal:  # such as a file of certificates that is being replaced
            log.log(self._repeats.level("client"), "Kafka: no new client yet: %s", refusal)
            return
        log.warning(
            "group %s: Kafka does not know this member any more, and its client does not join again; making a new one",
            self._member.group,
        )
        try:
            give_away()
        except KafkaException as error:
            log.debug("Kafka: %s", error)
        self._closed_apart()
        self._client = new
        self._contact.replaced(monotonic())
        self.subscribe()

    def close(self) -> None:
        """Leave the group, and wait for some seconds at most."""
        thread = self._closed_apart()
        thread.join(PATIENCE)
        if thread.is_alive():
            log.warning("group %s: Kafka does not reply, so this member ends without it", self._member.group)

    def _closed_apart(self) -> threading.Thread:
        """Close the client in a thread of its own, and return that; its callbacks are ignored from here on."""
        thread = threading.Thread(target=self._client.close, name=_CLOSING, daemon=True)
        thread.start()
        return thread


def _placed(places: Iterable[TopicPart]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]


def _is_closing() -> bool:
    """Return whether a callback comes from a client that is done with: the thread that closes it runs it."""
    return threading.current_thread().name == _CLOSING
