"""Gives old messages to one consumer group again: they become parked messages of it, and nothing is published.

The messages of a replay are brought into the order of (order key, position), so those of a key are together. A batch is
some whole keys, or some messages without an order. Its steps, the first and the last of which are a transaction each:

1. Lock the replay, if it is still where this process left it, and the group, so that its positions are not reset.
   Insert the rows of the inbox that are missing, hold the keys, park the messages in state waiting, and note how far
   the replay is.
2. Wait for the transactions that have locked the inbox since before 1 was committed: a listener may run in one of them
   that found its key free. Nothing is locked meanwhile. Live messages of these keys are parked behind the replayed.
3. Let the first message of each key run, unless it waits behind one that failed.

Messages without an order are due from 1 on.

If the process dies before 1 is committed, nothing of the batch has happened. After 1, its keys are held, and their
messages wait until the replay goes on: that begins with 2 and 3 for all that waits. What 1 has noted is not parked
again, and a parked message leaves in the transaction of its effect: so each message is applied once for a replay. An
unknown outcome of a commit ends the command; the note states which it was. Two processes at one replay: the second
finds it at another place, and ends.

What the group has no row of gets one, so Kafka's copy is refused from then on. What it has a row of is left out, or is
parked without another one, where the operator wants it applied again. What it has not read in Kafka yet is left out: it
comes from there, in its order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from outbox.drivers import psycopg_sync
from outbox.inbox import batch_plans, membership
from outbox.inbox.messages import Delivery, headers_of_all, identify
from outbox_relay.operations import consumers, inbox_drop
from outbox_relay.operations.replay_plan import AGAIN, APPLY, MESSAGES_AT_ONCE, STATEMENTS, Target, judge
from outbox_relay.operations.replay_source import Chosen, Origin, ReplaySource, Selection
from outbox_relay.text.errors import OperatorError

MOST_IN_HAND = 5_000
"""Messages that wait for a try; the replay waits while there are more."""
POLL_S = 0.05


class Place(NamedTuple):
    """How far a replay is: the last message that was dealt with, in the order of the replay."""

    key: bytes | None
    position: int | None


@dataclass
class Replay:
    """A replay that was begun."""

    id: int
    target: Target
    again: bool
    place: Place
    parked: int = 0


def begin(
    conn: psycopg.Connection[Any], target: Target, selection: Selection, origin: Origin, *, again: bool
) -> Replay:
    """Note a new replay; nothing is parked yet.

    Raises:
        OperatorError: Another one of the group is not finished.
    """
    values = {
        "group_id": target.group_id,
        "topic_id": target.source.topic_id,
        "selection": Jsonb(selection.document()),
        "source": origin.name,
        "again": again,
        "orderly": target.orderly,
        "published_before": origin.now,
    }
    row = conn.execute(STATEMENTS["begin"], values).fetchone()
    if row is None:
        raise OperatorError(
            f"a replay to group {target.group!r} is not finished; go on with it, or end it where it is:\n"
            f"outbox consumers replay {target.group} --resume\noutbox consumers replay {target.group} --cancel"
        )
    return Replay(row[0], target, again, Place(None, None))


@dataclass(frozen=True)
class OpenReplay:
    """A replay that is not finished, as it was begun."""

    id: int
    selection: dict[str, Any]
    source: str
    again: bool
    published_before: datetime
    after_key: bytes | None
    after_position: int | None
    parked: int
    actor: str
    started_at: datetime

    def go_on(self, target: Target) -> Replay:
        """Return it as something that can be run."""
        return Replay(self.id, target, self.again, Place(self.after_key, self.after_position), self.parked)


def find_open(conn: psycopg.Connection[Any], group: str) -> OpenReplay:
    """Return the replay of a group that is not finished.

    Raises:
        OperatorError: No replay to it is unfinished.
    """
    consumers.find(conn, group)
    with conn.cursor(row_factory=class_row(OpenReplay)) as cursor:
        found = cursor.execute(STATEMENTS["open"], {"group": group}).fetchone()
    if found is None:
        raise OperatorError(f"no replay to group {group!r} is unfinished")
    return found


class Replaying:
    """Parks the messages of a replay, batch by batch.

    Args:
        conn: an autocommit connection to the database of the group.
        source: of the messages.
        replay: where it is.
        rate: messages a second; None: as fast as the group takes them.
        waiting: called now and then with what is waited for.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        source: ReplaySource,
        replay: Replay,
        *,
        rate: float | None = None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._conn, self._source, self._replay = conn, source, replay
        self._rate, self._waiting = rate, waiting

    def run(self, chosen: Sequence[Chosen]) -> int:
        """Park what is left of the chosen messages; return how many were parked by all processes of the replay.

        Raises:
            OperatorError: Another process goes on with it, or the kind of the group has changed.
        """
        target, place = self._replay.target, self._replay.place
        if place.position is not None:
            done = (place.key is not None, place.key or b"", place.position)
            chosen = [each for each in chosen if target.rank(each) > done]
            self.promote(None)
        size = MESSAGES_AT_ONCE if self._rate is None else max(1, min(MESSAGES_AT_ONCE, int(self._rate)))
        due = time.monotonic()
        for batch in target.batches(chosen, size):
            self._wait_for_room()
            if self._rate is not None:
                self._wait_until(due)
                due = max(due, time.monotonic() - 1) + len(batch) / self._rate
            keys = self.park(batch)
            if keys:
                self.promote(keys)
        return self._finish()

    def cancel(self) -> int:
        """End the replay where it is; what is parked runs. Return how many messages were parked."""
        self.promote(None)
        return self._finish()

    def _finish(self) -> int:
        row = self._conn.execute(STATEMENTS["finish"], {"id": self._replay.id}).fetchone()
        return self._replay.parked if row is None else int(row[0])

    def park(self, batch: Sequence[Chosen]) -> list[bytes]:
        """Park messages that come next; return the order keys whose first message is to be promoted."""
        target, replay = self._replay.target, self._replay
        for day in sorted({each.born_on for each in batch}):
            with self._conn.transaction():
                psycopg_sync.run(self._conn, membership.ensure_partition(str(day)))
        after = Place(*target.place(batch[-1]))
        place = {"id": replay.id, "after_key": replay.place.key, "after_position": replay.place.position}
        with self._conn.transaction():
            row = self._conn.execute(STATEMENTS["lock"], place).fetchone()
            if row is None:
                raise OperatorError("another process goes on with this replay, or has ended it")
            if row != (True,):
                raise OperatorError(
                    f"group {target.group!r} was changed from orderly to concurrent, or back, since the replay began; "
                    f"end it: outbox consumers replay {target.group} --cancel"
                )
            deliveries = self._taken(batch)
            keys = sorted({each.order_key for each in deliveries if each.order_key is not None})
            if keys:
                self._conn.execute(STATEMENTS["hold"], {**self._group(), "keys": keys})
            parked = (
                self._conn.execute(STATEMENTS["park"], self._rows(deliveries)).rowcount if deliveries else 0
            )
            note = {
                "id": replay.id,
                "after_key": after.key,
                "after_position": after.position,
                "parked": parked,
            }
            self._conn.execute(STATEMENTS["note"], note)
        replay.place, replay.parked = after, replay.parked + parked
        return keys

    def promote(self, keys: list[bytes] | None) -> None:
        """Let the first messages of these keys run, or of all that wait, once no listener has found its key free."""
        self._await_listeners()
        values = {**self._group(), "id": self._replay.id, "keys": keys}
        with self._conn.transaction():
            if keys is None:
                values["keys"] = [key for (key,) in self._conn.execute(STATEMENTS["waiting_keys"], values)]
            self._conn.execute(STATEMENTS["lock_keys"], values)
            self._conn.execute(STATEMENTS["promote"], values)

    def _taken(self, batch: Sequence[Chosen]) -> list[Delivery]:
        """Insert the rows of the inbox, and return what is to be parked, in the order of the replay."""
        target = self._replay.target
        judged = judge(self._conn, target, batch, again=self._replay.again)
        chosen = [each for each, what in zip(batch, judged, strict=True) if what in (APPLY, AGAIN)]
        old = {each.message_id for each, what in zip(batch, judged, strict=True) if what == AGAIN}
        records = self._source.records(target.topic, chosen)
        deliveries = [
            identify(target.source, record, orderly=target.orderly)
            for record in records
            if record is not None
        ]
        new = [each for each in deliveries if each.message.message_id not in old]
        taken = psycopg_sync.run(self._conn, batch_plans.take_all(target.group_id, new)) if new else []
        if not self._replay.again:
            return [each for each in taken if each is not None]
        named = {each.message.message_id: own for each, own in zip(new, taken, strict=True)}
        return [named.get(each.message.message_id) or each for each in deliveries]

    def _group(self) -> dict[str, Any]:
        target = self._replay.target
        return {"group_id": target.group_id, "topic_id": target.source.topic_id}

    def _rows(self, deliveries: Sequence[Delivery]) -> dict[str, Any]:
        messages = [each.message for each in deliveries]
        return {
            **self._group(),
            "replay": self._replay.id,
            "fingerprint": f"given to the group by replay {self._replay.id}",
            "undecided": self._replay.target.by_headers,
            "ids": [each.message_id for each in messages],
            "days": [each.born_on for each in deliveries],
            "parts": [each.partition for each in messages],
            "offsets": [each.offset for each in messages],
            "digests": [each.digest for each in deliveries],
            "order_keys": [each.order_key for each in deliveries],
            "message_keys": [each.key for each in messages],
            "bodies": [each.body for each in messages],
            "published": [each.published_at for each in messages],
            **headers_of_all(messages)._asdict(),
        }

    def _await_listeners(self) -> None:
        before = inbox_drop.writers(self._conn)
        begun = time.monotonic()
        while before:
            time.sleep(POLL_S)
            before &= inbox_drop.writers(self._conn)
            if time.monotonic() - begun > 5:
                self._waiting("listeners that run now to end")

    def _wait_for_room(self) -> None:
        values = {"id": self._replay.id, "limit": MOST_IN_HAND + 1}
        while self._conn.execute(STATEMENTS["in_hand"], values).fetchall()[0][0] > MOST_IN_HAND:
            self._waiting(f"the group to apply some of {MOST_IN_HAND:,} messages")
            time.sleep(0.5)

    @staticmethod
    def _wait_until(due: float) -> None:
        if (pause := due - time.monotonic()) > 0:
            time.sleep(pause)
