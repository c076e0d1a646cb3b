"""A replay of old messages to a group, beside the steps of `inbox_model`.

An operator has messages parked that the group has read past: "missing" ones, which it skipped and has no row of, or,
"again", copies of what it has applied. A copy of message m is the number m - COPY.

    park        one transaction: the rows of the inbox, the held key, the parked rows in state waiting, and the note
                that they are parked
    wait        for the transactions that were open then: one of them may have found the key free, and runs
    promote     with the held key locked: the first parked message of the key becomes a retry, if it is waiting
    resume      after a death: by the note it goes on with the wait, or begins

Checked besides: a live message and a replayed one of the key never run at once, and none comes between the
replayed ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.models import inbox_model
from tests.support.models.inbox_model import FREE, IN_TRANSACTION, ORDER, RETRY, WAITING, Next, State
from tests.support.models.inbox_variants import Inbox

COPY = 100


def steps(v: Inbox, s: State) -> Iterator[Next]:
    """Yield every step of members, pumps and the replay."""
    for label, after in inbox_model.steps(v, s):
        yield label, _checked(s, after)
    if v.replays and not s.wrong:
        for label, after in _replay(v, s):
            yield label, _checked(s, after)


def _replay(v: Inbox, s: State) -> Iterator[Next]:
    at, noted, waits, rows = s.replay
    if at == "idle" and not noted:
        yield from _park(v, s)
    elif at == "parked":
        yield "the replay is noted", s._replace(replay=s.replay._replace(at="waits", noted=True))
    elif at == "idle":
        yield "the replay waits", s._replace(replay=s.replay._replace(at="waits", waits=_open(s)))
    elif at == "waits" and s.lock == FREE and not (waits and v.replay_waits):
        after = s._replace(replay=s.replay._replace(at="done"))
        if s.parked and s.parked[0][1] == WAITING:
            after = after._replace(parked=((s.parked[0][0], RETRY), *s.parked[1:]))
        yield "the replay promotes", after
    if at != "done" and s.deaths and (at != "idle" or rows):
        after = s._replace(replay=s.replay._replace(at="idle", waits=frozenset()))
        yield "the replay dies", after._replace(deaths=s.deaths - 1)


def _park(v: Inbox, s: State) -> Iterator[Next]:
    parked = {row for row, _ in s.parked}
    read = range(min(v.replayed, s.offset))
    if v.replays == "again":
        rows = [message - COPY for message in read if message not in parked]
    else:
        if v.replay_inserts and any(_is_taken(s, message) for message in range(v.replayed)):
            return
        rows = [message for message in read if message not in s.inbox and message not in parked]
    if s.lock != FREE or (v.replays == "again" and len(read) < v.replayed):
        return
    if not rows:
        yield "the replay finds nothing", s._replace(replay=s.replay._replace(at="done"))
        return
    at = "waits" if v.replay_notes == "with rows" else "parked"
    replay = s.replay._replace(at=at, noted=at == "waits", waits=_open(s), rows=s.replay.rows | set(rows))
    state = WAITING if v.replay_holds else RETRY
    inbox = s.inbox | {row for row in rows if row >= 0} if v.replay_inserts else s.inbox
    yield (
        f"the replay parks {rows}",
        s._replace(
            inbox=inbox,
            parked=(*s.parked, *((row, state) for row in rows)),
            held=s.held or v.replay_holds,
            replay=replay,
        ),
    )


def _is_taken(s: State, message: int) -> bool:
    return any(
        each.at in IN_TRANSACTION and (each.next == message or message in each.took) for each in s.members
    )


def _open(s: State) -> frozenset[int]:
    return frozenset(number for number, each in enumerate(s.members) if each.at in IN_TRANSACTION)


def _checked(before: State, s: State) -> State:
    """Note which transactions have ended, and what is wrong about a live message among replayed ones."""
    replay = s.replay
    if replay.waits - _open(s):
        s = s._replace(replay=replay._replace(waits=replay.waits & _open(s)))
    rows = {row for row, _ in s.parked} & replay.rows
    running = any(pump.at != "idle" and pump.row in replay.rows for pump in s.pumps)
    is_live = len(s.effects) > len(before.effects) and s.effects[-1] not in replay.rows
    if (running and any(each.at == "runs" for each in s.members)) or (
        is_live
        and rows
        and replay.at == "done"
        and not any(pump.row == s.effects[-1] for pump in before.pumps)
    ):
        return s._replace(wrong=s.wrong | {ORDER})
    return s
