"""A check whenever a leader sends: nothing of a key goes in front of what waits for it in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.publisher.core.values import Item

if TYPE_CHECKING:
    from tests.support.core_search.leader import Leader


def overtakes(leader: Leader, items: list[Item]) -> bool:
    """Return whether one of some messages that are sent has a message of its key in front of it that waits.

    At the end of a schedule the same mistake is seen only if the one in front arrives later; here it is always seen.
    """
    core, db = leader.core, leader.w.postgres.db
    if not (items and leader.leads() and (db.waiting or core.holds.claims)):
        return False
    first = _first_waiting(leader, {(item.row.topic, item.row.key) for item in items})
    return any(
        first.get((item.row.topic, item.row.key), item.row.position) < item.row.position for item in items
    )


def _first_waiting(leader: Leader, keys: set[tuple[str, object]]) -> dict[tuple[str, object], int]:
    core, db = leader.core, leader.w.postgres.db
    on_its_way = {item.row.id for item in core.streams.published}
    for stream in core.streams.by_name.values():
        on_its_way.update(item.row.id for item in stream.sent)
        on_its_way.update(item.row.id for item in stream.queued)
    first: dict[tuple[str, object], int] = {}
    waiting = [(id_, wait.scope) for id_, wait in db.waiting.items() if id_ not in core.holds.claims]
    for id_, scope in (*waiting, *((claim.row.id, claim.scope) for claim in core.holds.claims.values())):
        msg = db.messages.get(id_)
        if msg is None or msg.key is None or scope.kind in ("message", "expired") or id_ in on_its_way:
            continue
        name = (msg.topic, msg.key)
        if name in keys and msg.state == "COMMITTED":
            first[name] = min(msg.position, first.get(name, msg.position))
    return first
