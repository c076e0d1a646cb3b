"""Turns what the finder reads into rows of the core, each with what a Kafka record of it is made of.

The loop over rows is the hottest of the system. What is wrong with a message shows here, before it has a place on the
wire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from outbox import wire
from outbox.cloudevents import attributes as cloudevents
from outbox.partitioning.selectors import partition_of
from outbox_relay.publisher.core.values import Row
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.finder import KEY, ORDER_KEY, POSITION, QUEUE, SELECTOR, RawRow
from outbox_relay.publisher.kept_keys import LONGEST_KEY, LONGEST_TOPIC, kept
from outbox_relay.publisher.parked import UNNAMED
from outbox_relay.publisher.records import (
    Headers,
    check_size,
    decode_headers,
    keyless,
    reason_of,
    select,
    too_large,
)
from outbox_relay.publisher.topic import Topic

# Names in this module's own dictionary are looked up faster.
_ID, _BORN_AT, _DELIVER_AT, _TAGS, _KEYS = wire.ID, wire.BORN_AT, wire.DELIVER_AT, wire.TAGS, wire.KEYS
_GROUP, _TRANSACTION_ID, _TRACEPARENT = wire.PRODUCER_GROUP, wire.TRANSACTION_ID, wire.TRACEPARENT

TopicCount = tuple[int, str | None]
"""What the core takes for a topic's count: the pinned partitions, and the selector."""
FRAME = 256
"""Bytes that a row is counted with, besides its body."""
KEYS_CACHED = 100_000


class Rows:
    """Makes rows, and computes their partitions."""

    def __init__(self) -> None:
        """Begin without a topic."""
        self.topics: dict[str, Topic] = {}
        """What is known of the topics that can be published to."""
        self.errors: dict[int, Unpublishable] = {}
        """By id, why a message can be no record, or was refused; until its claim is written."""
        self._partitions: dict[int, dict[bytes, int]] = {}

    def partition_of(self, row: Row, count: TopicCount) -> int:
        """Return the partition of a row: of its queue, by its selector, or by its key's hash.

        Args:
            row: a row that was made here.
            count: the topic's partition count and its selector.
        """
        partitions, of_topic = count
        raw: RawRow = row.content[0]  # type: ignore[index]
        if raw[QUEUE] is not None:
            return int(raw[QUEUE])
        selector = raw[SELECTOR] or of_topic
        arg = raw[KEY] if raw[ORDER_KEY] is None else raw[ORDER_KEY]
        if selector is None and arg is not None:
            known = self._partitions.setdefault(partitions, {})
            partition = known.get(arg)
            if partition is None:
                partition = partition_of(None, arg, partitions)
                if len(arg) <= LONGEST_KEY:
                    if len(known) >= KEYS_CACHED:
                        known.clear()
                    known[arg] = partition
            return partition
        try:
            return partition_of(selector, arg, partitions, raw[POSITION])
        except Exception:  # noqa: BLE001  (the row is faulty for it, and goes nowhere)
            return 0

    def of_page(
        self, raws: Iterable[RawRow], doubted: Mapping[int, int], waiting: Collection[int] | None = None
    ) -> tuple[Row, ...]:
        """Make the rows of a page.

        Args:
            raws: what the finder read.
            doubted: by lane, the position up to which Kafka may have what has no publication.
            waiting: of a page of a hold, the ids in doubt; None: of another page, which leaves out what waits.
        """
        found: list[Row] = []
        topics = self.topics
        topic: Topic | None = None
        last_topic, last_headers = "", ""
        pairs: Headers = []
        missing = cloudevents.missing(pairs)
        for raw in raws:
            (position, id_, lane, name, key, body, arg, queue, selector, message_id, born_at, deliver_at, headers,
             tags, index_keys, group, transaction_id, traceparent, waits, expired, withheld, _) = raw  # fmt: skip
            if waits is not None and waiting is None:
                continue
            in_doubt = position <= doubted.get(lane, 0) if waiting is None else id_ in waiting
            if arg is None:
                arg = key
            order = queue if queue is not None else arg
            if name is None or len(name) > LONGEST_TOPIC:
                name, order, withheld = (name or "")[: LONGEST_TOPIC - 1] + UNNAMED, None, withheld or 0
            elif arg is not None and queue is None and len(arg) > LONGEST_KEY:
                order = kept(arg)
            if name != last_topic:
                topic, last_topic = topics.get(name), name
            record: Headers | None = None
            size = FRAME + (0 if body is None else len(body)) + (0 if headers is None else len(headers))
            if expired is None and (topic is not None or withheld is not None):
                try:
                    if withheld is not None:
                        raise too_large(withheld) if withheld else _nameless(name)
                    assert topic is not None  # noqa: S101  (asked above)
                    if key is None and topic.needs_key:
                        raise keyless(topic)
                    if queue is not None or selector is not None or topic.selector is not None:
                        select(topic, queue, selector, arg, position)
                    record = [(_ID, message_id), (_BORN_AT, born_at)]
                    if deliver_at is not None:
                        record.append((_DELIVER_AT, deliver_at))
                    if tags is not None:
                        record.append((_TAGS, tags))
                    if index_keys is not None:
                        record.append((_KEYS, index_keys))
                    if group is not None:
                        record.append((_GROUP, group))
                    if transaction_id is not None:
                        record.append((_TRANSACTION_ID, transaction_id))
                    if traceparent is not None:
                        record.append((_TRACEPARENT, traceparent))
                    if headers is not None:
                        if headers != last_headers:  # often the same text for many messages in a row
                            last_headers, pairs = "", decode_headers(headers)
                            missing, last_headers = cloudevents.missing(pairs), headers
                        record += pairs
                        if missing:
                            record += cloudevents.added(missing, message_id, born_at)
                    # Without a body of some size, a message is within its limit unless something else is long.
                    if size + 4 * _long(key, tags, index_keys, group) > topic.small:
                        check_size(topic, key, body, record)
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001  (whatever it is, it concerns this message)
                    record, self.errors[id_] = None, reason_of(error)
            is_faulty = id_ in self.errors and record is None and expired is None
            found.append(
                Row(id_, position, name, order, size, is_faulty, expired is not None, in_doubt, (raw, record))
            )
        return tuple(found)


def _long(*texts: bytes | str | None) -> int:
    return sum(len(text) for text in texts if text is not None)


def _nameless(name: str) -> Unpublishable:
    return Unpublishable(
        "TOPIC_EXCEPTION", f"{name[:80]!r} is longer than Kafka's {LONGEST_TOPIC} characters"
    )
