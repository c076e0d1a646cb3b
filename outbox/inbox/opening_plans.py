"""Where PostgreSQL lets partitions begin that were assigned, as logic without I/O: one transaction for each topic."""

from __future__ import annotations

import logging

from outbox.inbox import membership
from outbox.inbox.core.openings import Opened, Opening, Question, Unanswered
from outbox.inbox.messages import Source
from outbox.inbox.starts import decide_start
from outbox.statements import Plan

log = logging.getLogger("outbox.inbox")


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
    topic = yield from membership.number_topic(opening.topic, opening.kafka_id)
    found = yield from membership.positions(group, topic)
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
        found = yield from membership.begin(group, topic, opening.initial)
    starts, is_known = {}, bool(found)
    for part, known in opening.known.items():
        position = found.get(part)
        starts[part] = decide_start(
            position.offset if position else None, known, is_missing=position is None and is_known
        )
    missing = {part: start.offset for part, start in starts.items() if part not in found}
    if missing:
        found = yield from membership.begin(group, topic, missing)
    suspects = yield from membership.claim_partitions(group, topic, list(starts), member)
    generations = {part: found[part].generation for part in starts}
    return Opened(opening, Source(topic, opening.kafka_id), starts, generations, server, suspects)
