"""What a leader takes four times a second: requests, pauses and partition counts, and what Kafka's metadata show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_relay.publisher.core.values import Scope
from tests.support.core_search.world import KEYS

if TYPE_CHECKING:
    from tests.support.core_search.world import World

TOPIC_SCOPES = tuple((topic, Scope("topic", topic)) for topic in KEYS)


def take_signals(w: World, core: Any) -> None:
    """Let a core take what operators asked for in the tables, and what Kafka lists."""
    db = w.postgres.db
    for scope in sorted(db.requests, key=str):
        core.holds.release(scope)
    for topic, scope in TOPIC_SCOPES:
        hold = core.holds.by_scope.get(scope)
        if topic in db.paused and (hold is None or not hold.is_paused):
            core.pause(topic)
        elif hold is not None and hold.is_paused and topic not in db.paused:
            core.holds.release(scope, is_resumed=True)
    for scope in list(core.holds.by_scope):
        if scope.kind == "partition" and (scope.topic, scope.part) not in w.stuck:
            core.holds.release(scope)
    waiting = {wait.scope for wait in db.waiting.values()}
    held = {scope.topic for scope in core.holds.by_scope if scope.kind == "topic"}
    narrow = [s for s in core.holds.by_scope if s.topic in held and s.kind in ("key", "message")]
    for topic in held:
        whole = Scope("topic", topic)
        if whole in db.holds and whole not in waiting and whole not in db.requests:
            core.holds.drop_row(whole)
    core.holds.pass_empty(scope for scope in narrow if scope in db.holds and scope not in waiting)
    for due in core.holds.due(w.now):
        core.holds.release(due)
    for topic, count in db.asked.items():
        core.set_count(topic, count)
        if topic not in db.topics:
            db.topics[topic] = count
