"""Messages that are received and acknowledged one by one, as leases on parked messages.

A member reads Kafka as every member does, but runs no listener: in the transaction of the rows of the inbox it parks
the messages, as far as a caller waits for some. From then on Kafka has no part in it. A caller of another member waits
for the messages of all partitions: so a member that holds messages for which no caller asks checks every second
whether any message of its partitions can be received, and parks some if not. The schedules:

- The process dies before that transaction is committed: the offset has not moved, so the messages are delivered again.
  After it: their rows of the inbox refuse them, and any member can receive them.
- `receive` is one statement: it leases the messages by the time at which they are due again, and counts. A process that
  dies with them, or does not acknowledge in time, has them received again, by anyone, until they are dead.
- An acknowledgement deletes the parked message and lets the next one of its key follow, in the transaction of the
  caller's effect if it gives one. It is refused if the message was received again since: the count differs. So of two
  processes that have one message, because the first was paused, one commits. While the transaction is open its row is
  locked, so the message is not received meanwhile, however late it is.
- An unknown outcome of that commit: the message is gone with the effect, or is received again.

Order: of an orderly group the first message of a key is received, and the next one once that is acknowledged. The keys
are held as those of a failed message are, so what is delivered meanwhile is parked behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outbox import wire
from outbox.codecs.codec import Codecs
from outbox.drivers.psycopg_sync import run
from outbox.inbox import plans
from outbox.inbox.consumer import PushConsumer
from outbox.inbox.decoding import Decoding
from outbox.inbox.handling import Connection
from outbox.inbox.messages import ConsumedMessage, born_on, digest, headers_of_all
from outbox.inbox.parked_rows import DueSince, milliseconds, retry_of
from outbox.inbox.results import ConsumeResult
from outbox.inbox.sessions import LOCK_WAIT, locked_by_others
from outbox.inbox.settings import Member
from outbox.inbox.snapshots import require_new_snapshots
from outbox.statements import ByteaArray, Plan, Statement, TextArray, array_text, load

SQL = load("inbox_leases.sql")
MOST_PARKED = 1000
"""Messages of a group that are not acknowledged, or have a key: with so many, only what is asked for is parked."""


class ReceivedLease(NamedTuple):
    """A message that was received; `attempt`: how often, by which receipts differ."""

    id: int
    attempt: int
    message: ConsumedMessage


class _OnDemand(PushConsumer):
    has_retries = False
    is_on_demand = True


class Intake:
    """A member that parks what it reads, for `receive`."""

    def __init__(
        self, group: str, topics: dict[str, str], *, parked: threading.Event, **options: Any
    ) -> None:
        """Check the settings; nothing is opened yet.

        Args:
            group: the name of the group.
            topics: a tag expression for each topic.
            parked: set when messages may have been parked.
            options: as of `PushConsumer`.
        """
        self.consumer, self._parked = _OnDemand(group, topics, self._park, **options), parked

    @property
    def member(self) -> Member:
        """The member of the group."""
        return self.consumer.member

    @property
    def group_id(self) -> int:
        """The number of the group, once the member is registered."""
        return self.consumer._keeper.session.group

    @property
    def paused(self) -> Mapping[str, str]:
        """Why topics are paused, or the group; see `pauses`."""
        return self.consumer._how.pauses.topics

    def decoding(self, codecs: Codecs) -> Decoding:
        """Return what decodes the messages that are received: they are parked as they came.

        Raises:
            ConfigurationError: it does not read a topic of a codec.
        """
        return Decoding(codecs, list(self.member.subscription), self.consumer._how.counts)

    def ask(self) -> None:
        """Let messages be read: a caller waits for some."""
        self.consumer._assignments.ask()

    def unasked(self) -> list[tuple[int, int]]:
        """Return topic ids and numbers of the partitions, if it has messages that no caller has asked for.

        None while others are being parked: they cannot be seen before that is committed.
        """
        assignments = self.consumer._assignments
        with assignments as partitions:
            if assignments.is_asked or not partitions.ready(0.0) or partitions.has_running(partitions.places):
                return []
            found = [(place, partitions.find(place)) for place in partitions.places]
            return [(each.source.topic_id, part) for (_, part), each in found if each is not None]

    def _park(self, conn: Connection, messages: Sequence[ConsumedMessage]) -> ConsumeResult:
        orderly = self.member.settings.orderly
        for each in messages if orderly else ():
            self.consumer._how.require_room(each.topic, order_of(each))
        with (
            locked_by_others()
        ):  # such as by an application that acknowledges and stands still before it commits
            run(conn, park_received(self.group_id, messages, orderly=orderly))
        self._parked.set()
        return ConsumeResult.SUCCESS


def park_received(group: int, messages: Sequence[ConsumedMessage], *, orderly: bool) -> Plan[None]:
    """Park messages whose rows of the inbox were inserted by this transaction; the held keys first."""
    headers = headers_of_all(messages)
    rows = (
        str(group),
        array_text(each.message_id for each in messages),
        array_text(born_on(each) for each in messages),
        ByteaArray([order_of(each) if orderly else None for each in messages]),
    )
    if orderly:
        yield Statement(SQL["wait_briefly"], (str(int(LOCK_WAIT * 1000)),))
        yield Statement(SQL["hold_all"], rows, answers=False)
    yield Statement(
        SQL["park_all"],
        (
            *rows,
            ByteaArray([digest(each.key, each.body) for each in messages]),
            ByteaArray([each.key for each in messages]),
            ByteaArray([each.body for each in messages]),
            array_text(milliseconds(each.published_at) for each in messages),
            TextArray(headers.names),
            ByteaArray(headers.values),
            array_text(headers.firsts),
            array_text(headers.lasts),
        ),
        answers=False,
    )


def order_of(message: ConsumedMessage) -> bytes | None:
    """Return the order key of a message in an orderly group."""
    return wire.order_of(message.headers, message.key, message.partition)


def receive(
    group: int,
    most: int,
    seconds: float,
    attempts: int,
    due: DueSince,
    *,
    now: float,
    paused: Iterable[str] = (),
    topics: Iterable[str] | None = None,
) -> Plan[tuple[list[ReceivedLease], list[ConsumedMessage]]]:
    """Lease messages; return them, and those that are dead now because they were not acknowledged.

    Args:
        group: the number of the group.
        most: how many.
        seconds: until they can be received again.
        attempts: how often a message may be received.
        due: where the search begins.
        now: the time, as `due` counts it.
        paused: topics of which nothing is received.
        topics: that the member reads; what other members alone read is theirs. None: all.
    """
    limits = str(group), str(most), str(seconds), str(attempts)
    rows = yield Statement(
        SQL["receive"], (*limits, str(due.begin(now)), *plans.topic_arrays(paused, topics))
    )
    leased, dead = [], []
    for *columns, due_at, is_dead in rows:
        due.found(due_at, now)
        retry = retry_of(columns)
        message = retry.delivery.message
        if is_dead:
            dead.append(message)
        else:
            leased.append(ReceivedLease(retry.id, retry.attempts + 1, message))
    return leased, dead


def lacks(group: int, places: Sequence[tuple[int, int]]) -> Plan[bool]:
    """Return whether nothing of these partitions can be received now, and the group is not full.

    Args:
        group: the number of the group.
        places: ids of topics, and numbers of partitions.
    """
    topics, parts = zip(*places, strict=True)
    [(answer,)] = yield Statement(
        SQL["lacks"],
        (str(group), array_text(map(str, topics)), array_text(map(str, parts)), str(MOST_PARKED)),
    )
    return bool(answer)


def acknowledge(lease: ReceivedLease) -> Plan[bool]:
    """Delete a message that was received, and let the next one of its key follow; False: it is in other hands.

    Raises:
        IsolationLevelError: The transaction keeps its snapshot; nothing was written.
    """
    rows = yield Statement(SQL["lock_lease"], (str(lease.id), str(lease.attempt)))
    isolation, group, topic_id, key = rows[0]
    require_new_snapshots(isolation)
    if group is None:
        return False
    yield from plans.remove(group, topic_id, key, lease.id)
    return True


def change_lease(lease: ReceivedLease, seconds: float) -> Plan[bool]:
    """Let a message be received again after a time from now; False: it is in other hands."""
    return bool((yield Statement(SQL["change_lease"], (str(lease.id), str(lease.attempt), str(seconds)))))
