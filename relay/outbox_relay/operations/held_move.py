"""Holds a topic until consumer groups have read its partitions, and moves it over to more partitions then.

The state is the topic's row: a pause, the new count and the groups. Each step is one statement that compares the row,
so the second of two sessions finds what the first one has done:

- The command dies before `hold`: nothing has happened. After it: the topic waits as a paused one does
  (publisher/hands/gates.py). `outbox topic ls` and `outbox status` show it. The same command goes on, and `--abort`
  lets the topic flow by its old count.
- It dies after `switch`: the topic flows by the new count. The same command finds that, and waits for the relays.
- Two of these commands with the same groups: both wait, and the second one finds the topic switched. With other groups:
  refused.
- `abort` and `switch` at once: the row's lock puts them in a row. Switched first, there is nothing to abort. Aborted
  first, `switch` changes nothing and raises. A move that is begun again after an abort has another time, so an earlier
  command does not end it.
- An application changes the count meanwhile (`register_topic(…, move_keys=True)`): `switch` sets the new one.
- A relay that dies or pauses: as with every pause and every change of a count (publisher/core/core.py). One that
  sleeps past its lease with messages on the wire may append them to an old partition after the groups were asked. Its
  successor publishes these messages again, in the new one, in front of the later ones of their keys.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.operations import topics
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.operations.topics import Registered
from outbox_relay.text.formatting import printable

STATEMENTS = Statements("outbox_relay/operations/held_move.sql")


def require_request(found: Registered, partitions: int, groups: Collection[str]) -> None:
    """Refuse a request that contradicts the move that is under way, or a pause.

    Raises:
        TopicError: with the command that goes on with that move, and the one that ends it.
    """
    name = found.name
    if found.repartition_to is None:
        if groups and found.paused_at is not None and found.partitions != partitions:
            raise TopicError(
                f"topic {name!r} is paused, by {printable(found.paused_by or '')}: "
                f"{printable(found.pause_reason or '')}; expected one that flows, because --wait-for-group holds it by "
                f"itself\nlet it go on first: outbox topic resume {name}"
            )
        return
    under_way = sorted(found.repartition_groups or ())
    if found.repartition_to != partitions or under_way != sorted(set(groups)):
        raise TopicError(
            f"topic {name!r} is held already, to go over to {found.repartition_to} partitions when the consumer groups "
            f"{printable(', '.join(under_way))} have read it; this command asks for something else\n"
            f"to go on with it: {printable(command(name, found.repartition_to, under_way))}\n"
            f"to put it back: outbox topic repartition {name} --abort"
        )


def command(name: str, partitions: int, groups: Collection[str]) -> str:
    """Return the command that begins this move, and goes on with it."""
    waits = "".join(f" --wait-for-group {group}" for group in sorted(groups))
    return f"outbox topic repartition {name} --to {partitions}{waits}"


def hold(
    conn: psycopg.Connection[Any], old: Registered, partitions: int, groups: Collection[str]
) -> Registered:
    """Hold a topic, or find that another session holds it for the same; return its row.

    Raises:
        TopicError: it was changed meanwhile.
    """
    reason = f"it goes over to {partitions} partitions when consumer groups have read it: {', '.join(sorted(groups))}"
    params = {"name": old.name, "to": partitions, "groups": sorted(groups), "partitions": old.partitions}
    conn.execute(STATEMENTS["hold"], {**params, "reason": reason})
    found = topics.get(conn, old.name)
    require_request(found, partitions, groups)
    if found.repartition_to is None:
        raise _changed(found)
    return found


def is_switched(conn: psycopg.Connection[Any], held: Registered) -> bool:
    """Whether another session has ended this move; False: it is under way.

    Raises:
        TopicError: it was aborted.
    """
    found = topics.get(conn, held.name)
    if (found.paused_at, found.repartition_to) == (held.paused_at, held.repartition_to):
        return False
    if found.repartition_to is None and found.partitions == held.repartition_to:
        return True
    raise _changed(found)


def switch(conn: psycopg.Connection[Any], held: Registered) -> bool:
    """Give a held topic its new count and let it go on; return whether this session did it, not another one.

    Raises:
        TopicError: the move was aborted.
    """
    params = {"name": held.name, "held_at": held.paused_at}
    if conn.execute(STATEMENTS["switch"], params).rowcount == 1:
        return True
    is_switched(conn, held)
    return False


def abort(conn: psycopg.Connection[Any], name: str) -> Registered:
    """Let a held topic go on by its present count; return its row as it was. Needs the role outbox_operator.

    Raises:
        TopicError: no move is under way, or it has switched.
    """
    found = topics.get(conn, name)
    if conn.execute(STATEMENTS["abort"], {"name": name}).rowcount == 1:
        return found
    now = topics.get(conn, name)
    if found.repartition_to is not None and now.partitions == found.repartition_to:
        raise TopicError(
            f"topic {name!r} has gone over to {now.partitions} partitions just now; that cannot be undone in order: "
            "messages of its keys may be in the new partitions"
        )
    raise TopicError(
        f"there is nothing to abort: no repartition holds topic {name!r}; it is pinned to {now.partitions} partitions. "
        f"One that has switched cannot be undone in order\nsee: outbox topic show {name}"
    )


def _changed(found: Registered) -> TopicError:
    return TopicError(
        f"topic {found.name!r} was changed by another session meanwhile, or its move was aborted: it is pinned to "
        f"{found.partitions} partitions\ncheck it, then repeat the command: outbox topic show {found.name}"
    )
