"""A check whenever a leader sends: nothing of a key goes in front of an older message of that key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_relay.publisher.core.values import Item

if TYPE_CHECKING:
    from tests.support.core_search.leader import Leader


def overtakes(leader: Leader, items: list[Item]) -> bool:
    """Return whether an older message of a key waits in the table, or was not read, when one of the key is sent.

    At the end of a schedule the same mistake is seen only if the older one arrives later; here it is always seen.
    """
    core, postgres = leader.core, leader.w.postgres
    db, exempt = postgres.db, postgres.kinds.exempt
    last: dict[str, int] = {}
    for item in items:
        key = item.row.key
        if key is not None and item.row.content not in exempt:
            last[str(key)] = max(item.row.position, last.get(str(key), 0))
    if not last or not leader.leads():
        return False
    older = {
        msg.id
        for msg in db.messages.values()
        if msg.key in last
        and msg.position < last[msg.key]
        and msg.position not in db.publication
        and msg.state == "COMMITTED"
        and msg.uid not in exempt
    }
    if not older:
        return False
    older.difference_update(item.row.id for item in core.streams.published)
    for stream in core.streams.by_name.values():
        older.difference_update(item.row.id for item in stream.sent)
    return bool(older)
