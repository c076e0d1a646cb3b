"""What a member reads and writes of its group, as logic without I/O: its registration, and positions."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from outbox.errors import (
    ConfigurationError,
    ConsumerFailedError,
    InvalidSubscriptionError,
    SubscriptionConflictError,
)
from outbox.inbox.core.full_keys import CountBehind
from outbox.inbox.core.openings import Opened, Opening, Question, Unanswered
from outbox.inbox.core.partitions import StoredOffset
from outbox.inbox.messages import Delivery, Source
from outbox.inbox.starts import decide_start
from outbox.statements import Plan, Statement, TextArray, array_text, load

SQL = load("inbox_groups.sql")
log = logging.getLogger("outbox.inbox")


class Position(NamedTuple):
    """Where a group is in a partition, by its row."""

    offset: int
    generation: int


def require_one_type(group: str, topics: Sequence[str]) -> Plan[None]:
    """Refuse topics that are registered in this database with different types: RocketMQ keeps their groups apart.

    Asked once, at the start of a member: a type that is changed later ends none that run.

    Raises:
        InvalidSubscriptionError: with a topic of each type.
    """
    types = yield Statement(SQL["types"], (TextArray(topics),))
    if len(types) > 1:
        found = ", ".join(f"{topic} is {kind}" for kind, topic in types)
        raise InvalidSubscriptionError(
            f"topics: group {group!r} reads topics of several types ({found}); allowed: topics of one type, and MIXED "
            "ones. Use a group for each type"
        )


def register(
    group: str, member: str, subscription: str, *, orderly: bool, partitions: int = 0, full_keys: int = 0
) -> Plan[int]:
    """List a member, or state that it still runs, how many partitions it reads, and how many of its keys are full.

    Members register one after the other. One that was not seen for a minute, because it stood still, is not listed any
    more, and is compared with the others again.

    Returns:
        The number of its group.

    Raises:
        SubscriptionConflictError: A member that runs reads a topic by another expression, or has another kind of
            listener. It may read other topics.
        ConsumerFailedError: The group is bound to a role that the user is not a member of.
    """
    values = (subscription, _boolean(orderly))
    rows = yield Statement(SQL["find_group"], (group,))
    if not rows:
        yield Statement(SQL["add_group"], (group, *values), answers=False)
        rows = yield Statement(SQL["find_group"], (group,))
    if not rows:
        yield from _refuse_hidden(group)
    number = str(rows[0][0])
    others = yield Statement(SQL["others"], (number, member, *values))
    if others:
        other, theirs, is_orderly = others[0]
        raise SubscriptionConflictError(
            f"group {group!r}: member {other} reads {_told(theirs, is_orderly)}, this one reads "
            f"{_told(subscription, orderly)}. Members may read other topics, and one topic by the same "
            "expression: otherwise they would skip messages of each other. Stop the others first, or use another group"
        )
    yield Statement(SQL["join"], (number, member, *values, str(partitions), str(full_keys)))
    yield Statement(SQL["change_group"], (number, _boolean(orderly)))
    return int(number)


def require_same(group: str, before: int, now: int) -> None:
    """Refuse the number of another group; its registration is rolled back.

    Raises:
        ConsumerFailedError: The group of a member was deleted.
    """
    if now != before:
        raise ConsumerFailedError(
            f"group {group!r}: number {before}, which this member joined, was deleted while the member stood still; it "
            "writes nothing more. Start it again: it joins a new group of this name"
        )


def _refuse_hidden(group: str) -> Plan[NoReturn]:
    """Refuse a group that this user does not see: it would consume as if nothing were there."""
    [(role, user)] = yield Statement(SQL["hidden_by"], (group,))
    if role is None:
        raise ConsumerFailedError(
            f"group {group!r} is not visible to the user {user}, or was deleted just now; start the member again"
        )
    raise ConsumerFailedError(
        f"group {group!r} is bound to the role {role}, and the user {user} is not a member of it; "
        f'run: GRANT "{role}" TO "{user}", or: outbox consumers unbind {group}'
    )


def require_copies(topic: str) -> Plan[None]:
    """Refuse a dead letter topic to which no copy could be sent.

    Raises:
        ConfigurationError: It is not registered in this database, or the role may not send.
    """
    rows = yield Statement(SQL["may_copy"], (topic,))
    is_registered, may_send = rows[0]
    if not is_registered:
        raise ConfigurationError(
            f"dead_letter_topic: {topic!r} is not registered in the consumer's database; "
            f"run: outbox topic create {topic}"
        )
    if not may_send:
        raise ConfigurationError(
            "dead_letter_topic: this role may not send; run: GRANT outbox_producer TO the role of the consumer"
        )


def copy_to(group: int, topic: str | None) -> Plan[None]:
    """State where copies of the group's dead letters are sent; the member that has started last decides."""
    yield Statement(SQL["copy_to"], (str(group), topic))


def is_listed(group: int, member: str) -> Plan[bool]:
    """Return whether a member was seen so lately that no member with another subscription can join for a while."""
    return bool((yield Statement(SQL["is_listed"], (str(group), member))))


def count_behind(group: int, per_key: int, per_group: int) -> Plan[CountBehind]:
    """Count what waits behind messages of a group that failed, up to twice of what may."""
    limits = per_key // 2, 2 * per_group
    rows = yield Statement(SQL["count_behind"], (str(group), *map(str, limits)))
    long = {(topic, key): messages for *_, topic, key, messages in rows if topic is not None}
    keys, messages, members = rows[0][:3]
    return CountBehind(keys, messages, members, long)


def leave(group: int, member: str) -> Plan[None]:
    """State that the member has ended."""
    yield Statement(SQL["leave"], (str(group), member))


def number_topic(name: str, kafka_id: str) -> Plan[int]:
    """Return the number of a topic, and give it one if it has none."""
    rows = yield Statement(SQL["find_topic"], (kafka_id,))
    if not rows:
        yield Statement(SQL["add_topic"], (name, kafka_id), answers=False)
        rows = yield Statement(SQL["find_topic"], (kafka_id,))
    return int(rows[0][0])


def positions(group: int, topic: int) -> Plan[dict[int, Position]]:
    """Return where a group is in a topic."""
    rows = yield Statement(SQL["positions"], (str(group), str(topic)))
    return {part: Position(offset, generation) for part, offset, generation in rows}


def begin(group: int, topic: int, starts: Mapping[int, int]) -> Plan[dict[int, Position]]:
    """State where a group begins in partitions that have no position, and return all positions of the topic."""
    yield Statement(SQL["begin"], (str(group), str(topic), array_text(starts), array_text(starts.values())))
    return (yield from positions(group, topic))


def claim_partitions(group: int, topic: int, parts: Sequence[int], member: str) -> Plan[dict[int, set[int]]]:
    """State that a member reads partitions of a topic; return those that the member before has not given back.

    With each of them the offsets of the messages whose runs had begun, were counted, and are not done.
    """
    key = (str(group), str(topic), array_text(parts))
    rows = yield Statement(SQL["claim"], (*key, member))
    suspects: dict[int, set[int]] = {part: set() for part, was_others in rows if was_others}
    yield Statement(SQL["forget_runs"], (*key, array_text(suspects)))
    if suspects:
        for part, offset in (yield Statement(SQL["begun_runs"], key)):
            suspects[part].add(offset)
    return suspects


def open_partitions(
    group: int, name: str, member: str, opening: Opening, server: int
) -> Plan[Opened | Unanswered]:
    """Decide where partitions are read from, store that, and state that the member reads them.

    Args:
        group: the number of the group.
        name: of the group.
        member: who will read them.
        opening: the partitions, with what Kafka knows of them.
        server: the number of the server of PostgreSQL, as the member counts them.
    """
    topic = yield from number_topic(opening.topic, opening.kafka_id)
    found = yield from positions(group, topic)
    if not found:
        if opening.initial is None:
            where = Question(opening.topic, tuple(opening.known), opening.ticket)
            reason = f"not all ends are known, and the group begins at {opening.origin}"
            return Unanswered([where], reason)
        log.info(
            "group %s has no position in topic %s: it begins at %s, %s",
            name,
            opening.topic,
            opening.origin,
            opening.initial,
        )
        found = yield from begin(group, topic, opening.initial)
    starts, is_known = {}, bool(found)
    for part, known in opening.known.items():
        position = found.get(part)
        starts[part] = decide_start(
            position.offset if position else None, known, is_missing=position is None and is_known
        )
    missing = {part: start.offset for part, start in starts.items() if part not in found}
    if missing:
        found = yield from begin(group, topic, missing)
    suspects = yield from claim_partitions(group, topic, list(starts), member)
    generations = {part: found[part].generation for part in starts}
    return Opened(opening, Source(topic, opening.kafka_id), starts, generations, server, suspects)


def release(group: int, member: str, offsets: Sequence[StoredOffset] | None = None) -> Plan[None]:
    """Give partitions back, of these offsets or all that the member reads: what ran there has not ended its process."""
    topics, parts = None, None
    if offsets is not None:
        topics, parts = (
            array_text(each.topic_id for each in offsets),
            array_text(each.part for each in offsets),
        )
    yield Statement(SQL["release"], (str(group), member, topics, parts))


def count_run(group: int, delivery: Delivery, member: str, *, is_retry: bool) -> Plan[int]:
    """Count that a run of a message begins in the process of a member; return in how many it has begun."""
    message = delivery.message
    place = (group, delivery.topic_id, message.partition, message.offset)
    values = (
        *map(str, place),
        str(message.message_id),
        str(delivery.born_on),
        "true" if is_retry else "false",
    )
    rows = yield Statement(SQL["count_run"], (*values, member))
    return int(rows[0][0])


def store(group: int, offsets: Sequence[StoredOffset]) -> Plan[None]:
    """Move positions forward; one that was reset, or that is further ahead, is left alone."""
    columns = zip(
        *((each.topic_id, each.part, each.offset, each.generation) for each in offsets), strict=True
    )
    yield Statement(SQL["store"], (str(group), *map(array_text, columns)))


def ensure_ahead() -> Plan[None]:
    """Make the partitions of the inbox for the coming days."""
    yield Statement(SQL["ensure_ahead"])


def ensure_partition(day: str) -> Plan[None]:
    """Make the partition of the inbox for a day of birth, if it can have one."""
    yield Statement(SQL["ensure_partition"], (day,))


def end_session(backend: int) -> Plan[None]:
    """End a session of PostgreSQL, and so its transaction."""
    yield Statement(SQL["end_session"], (str(backend),))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _told(subscription: str, orderly: bool) -> str:
    kind = "an orderly" if orderly else "a concurrent"
    topics = ", ".join(f"{topic}: {tags}" for topic, tags in sorted(json.loads(subscription).items()))
    return f"{{{topics}}} by {kind} listener"
