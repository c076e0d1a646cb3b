"""Turns what the finder reads into rows of the core, each with what a Kafka record of it is made of.

The loop over rows is the hottest of the system. What is wrong with a message shows here, before it has a place on the
wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping

from outbox import wire
from outbox.cloudevents import attributes as cloudevents
from outbox.partitioning.selectors import partition_of
from outbox_relay.publisher.core.values import Row
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.finder import KEY, ORDER_KEY, POSITION, QUEUE, SELECTOR, RawRow
from outbox_relay.publisher.records import (
    LONGEST_KEY,
    LONGEST_TOPIC,
    ROOM,
    UNNAMED,
    Headers,
    Topic,
    check_size,
    decode_headers,
    kept,
    keyless,
    reason_of,
    select,
    too_large,
)

# Names in this module's own dictionary are looked up faster.
_ID, _BORN_AT, _DELIVER_AT, _TAGS, _KEYS = wire.ID, wire.BORN_AT, wire.DELIVER_AT, wire.TAGS, wire.KEYS
_GROUP, _TRANSACTION_ID, _TRACEPARENT = wire.PRODUCER_GROUP, wire.TRANSACTION_ID, wire.TRACEPARENT

TopicCount = tuple[int, str | None]
"""What the core takes for a topic's count: the pinned partitions, and the selector."""
OwnHeaders = tuple[Headers, tuple[str, ...]]
"""Headers that a message has, and the names of those that it lacks."""
FRAME = 256
"""Bytes that a row is counted with, besides its body."""
KEYS_CACHED = 100_000
LONG = ROOM // 32
"""With a key or header of more characters the size is computed: seven of them, and the frame, take less than ROOM."""
_new = tuple.__new__


class Rows:
    """Makes rows, and computes their partitions."""

    def __init__(self) -> None:
        """Begin without a topic."""
        self.topics: dict[str, Topic] = {}
        """What is known of the topics that can be published to."""
        self.errors: dict[int, Unpublishable] = {}
        """By id, why a message can be no record, or was refused; until its claim is written."""
        self._partitions: defaultdict[int, dict[Hashable, int]] = defaultdict(dict)
        """By count, the partitions of keys by their hash; no queue is among them."""
        self._text: str | None = None
        self._own: OwnHeaders = ([], ())

    def partition_of(self, row: Row, count: TopicCount) -> int:
        """Return the partition of a row: of its queue, by its selector, or by its key's hash.

        Args:
            row: a row that was made here.
            count: the topic's partition count and its selector.
        """
        partitions, of_topic = count
        raw: RawRow = row.content[0]  # type: ignore[index]
        selector = raw[SELECTOR] or of_topic
        known = self._partitions[partitions]
        if selector is None and (partition := known.get(row.key)) is not None:
            return partition
        if raw[QUEUE] is not None:
            return int(raw[QUEUE])
        arg = raw[KEY] if raw[ORDER_KEY] is None else raw[ORDER_KEY]
        if selector is None and arg is not None:
            partition = partition_of(None, arg, partitions)
            if row.key == arg:  # no short form of a long one
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
        for raw in raws:
            (position, id_, lane, name, key, body, arg, queue, selector, _, _, _, headers,
             tags, index_keys, group, transaction_id, traceparent, waits, expired, withheld, _) = raw  # fmt: skip
            if waits is not None and waiting is None:
                continue
            in_doubt = position <= doubted.get(lane, 0) if waiting is None else id_ in waiting
            arg = key if arg is None else arg
            order = arg if queue is None else queue
            if name is None or len(name) > LONGEST_TOPIC:
                name, order, withheld = (name or "")[: LONGEST_TOPIC - 1] + UNNAMED, None, withheld or 0
            elif queue is None and arg is not None and len(arg) > LONGEST_KEY:
                order = kept(arg)
            topic = self.topics.get(name)
            if topic is not None:
                name = topic.name  # one object: the core looks each row's up several times
            own: OwnHeaders | None = None
            is_sound = False
            size = FRAME + (0 if body is None else len(body)) + (0 if headers is None else len(headers))
            if expired is None and (topic is not None or withheld is not None):
                try:
                    if topic is None or withheld is not None:
                        raise too_large(withheld) if withheld else _nameless(name)
                    if key is None and topic.needs_key:
                        raise keyless(topic)
                    if queue is not None or selector is not None or topic.selector is not None:
                        select(topic, queue, selector, arg, position)
                    if headers is not None:
                        own = self._own if headers == self._text else self._decode(headers)
                    if (size > topic.small or (key and len(key) > LONG) or (headers and len(headers) > LONG)
                        or (tags and len(tags) > LONG) or (index_keys and len(index_keys) > LONG)
                        or (group and len(group) > LONG) or (transaction_id and len(transaction_id) > LONG)
                        or (traceparent and len(traceparent) > LONG)):  # fmt: skip
                        check_size(topic, key, body, record_headers(raw, own))
                    is_sound = True
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001  (whatever it is, it concerns this message)
                    self.errors[id_] = reason_of(error)
            is_faulty = not is_sound and expired is None and id_ in self.errors
            values = id_, position, name, order, size, is_faulty, expired is not None, in_doubt, (raw, own)
            found.append(_new(Row, values))
        return tuple(found)

    def _decode(self, text: str) -> OwnHeaders:
        """Decode headers; often the same text comes for many messages in a row."""
        pairs = decode_headers(text)
        self._own, self._text = (pairs, cloudevents.missing(pairs)), text
        return self._own


def record_headers(raw: RawRow, own: OwnHeaders | None) -> Headers:
    """Return all headers of a record: the outbox's, and the message's own."""
    (_, _, _, _, key, _, order_key, queue, selector, message_id, born_at, deliver_at, _,
     tags, index_keys, group, transaction_id, traceparent, _, _, _, _) = raw  # fmt: skip
    record: Headers = [(_ID, message_id), (_BORN_AT, born_at)]
    if deliver_at is not None:
        record.append((_DELIVER_AT, deliver_at))
    if order_key is not None or queue is not None:
        stated = wire.order_header(key, order_key, queue, selector)
        if stated is not None:
            record.append(stated)
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
    if own is not None:
        pairs, missing = own
        record += pairs
        if missing:
            record += cloudevents.added(missing, message_id, born_at)
    return record


def _nameless(name: str) -> Unpublishable:
    return Unpublishable(
        "TOPIC_EXCEPTION", f"{name[:80]!r} is longer than Kafka's {LONGEST_TOPIC} characters"
    )
