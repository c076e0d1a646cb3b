"""A topic that moves to more partitions, as a state machine without a server: every interleaving of relay sessions.

One key of one lane. Its messages go to the old partition, or to the new one once a session uses the changed count. The
registry changes at any moment. Sessions take the lane from each other: by hand-over, after a death, or after a pause
past the lease, from which a session wakes up at any later time. What a session gave to Kafka arrives at any later time
or never, in order within a partition and in any order between the two.

    look up     two steps on a thread: reads the registry, brings what it read; the loop goes on meanwhile
    take        the lane is free: goes on from what is recorded, with the topics as the session knew them
    read anew   after it took the lane, before it publishes: reads the registry itself
    use         a change that was read, once nothing of the topic is on the session's wire
    barrier, produce    one message; a pause past the lease may come in between
    start over  a new producer, and topics that are not known; the old producer's messages may arrive
    record, give back   as the relay does

Checked in every state: ORDER, a message appears before the one in front of it. BACK, the owner of the lane lets a
message appear first in the old partition, although one in front of it appeared first in the new one. STUCK, nothing
more happens, and messages are left although a session lives. `Variant` takes single rules away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

ORDER, BACK, STUCK = "ORDER", "BACK", "STUCK"
OLD, NEW = 0, 1
UNKNOWN = -1
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Variant:
    """What may happen; the other defaults are the rules of topic_changes.py."""

    sessions: int = 2
    messages: int = 3
    hand_overs: int = 2
    deaths: int = 0
    pauses: int = 0
    restarts: int = 0
    waits: bool = True
    """Whether a change is used only when nothing is on the wire."""
    reads_anew: bool = True
    """Whether the registry is read after a lane was taken, before it is published from."""
    discards_older: bool = True
    """Whether a look-up is left out that began before the session itself read the registry."""


class Session(NamedTuple):
    """One session: `used` and `read` are counts that it publishes by, and that it has read."""

    lives: bool = True
    """Whether it takes steps. One that was paused past its lease at most produces the page that has its barrier."""
    used: int = UNKNOWN
    read: int = UNKNOWN
    looking: int = UNKNOWN
    """What a look-up under way has read."""
    is_older: bool = False
    """Whether the session read the registry itself since that look-up began."""
    has_read_anew: bool = False
    awaits: bool = False
    """Whether it may publish nothing before it uses what it read anew."""
    at: int = 0
    secured: bool = False
    wire: tuple[tuple[int, int], ...] = ()
    """Messages, with their partitions, that have not arrived."""


class State(NamedTuple):
    """Everything at one moment."""

    sessions: tuple[Session, ...]
    orphans: tuple[tuple[int, int], ...] = ()
    """The wire of a producer that was replaced."""
    registry: int = OLD
    owner: int = NOBODY
    recorded: int = 0
    seen: int = 0
    """Up to which message all have appeared."""
    has_moved: bool = False
    """Whether a message appeared first in the new partition."""
    hand_overs: int = 0
    deaths: int = 0
    pauses: int = 0
    restarts: int = 0
    wrong: frozenset[str] = frozenset()


Next = tuple[str, State]


def start(v: Variant) -> State:
    """The state before any session has the lane."""
    return State(
        (Session(),) * v.sessions, (), OLD, NOBODY, 0, 0, False, v.hand_overs, v.deaths, v.pauses, v.restarts
    )


def _with(s: State, number: int, session: Session) -> State:
    return s._replace(sessions=(*s.sessions[:number], session, *s.sessions[number + 1 :]))


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    if s.registry == OLD:
        yield "the registry changes", s._replace(registry=NEW)
    for left, one in _heads(s.orphans):
        yield f"{one} of a replaced producer arrives", _arrive(s._replace(orphans=left), one, owned=False)
    for number, session in enumerate(s.sessions):
        for left, one in _heads(session.wire):
            after = _with(s, number, session._replace(wire=left))
            yield f"{number}: {one} arrives", _arrive(after, one, owned=s.owner == number)
        if session.secured:
            sent = (session.at + 1, session.used)
            produced = session._replace(at=session.at + 1, secured=False, wire=(*session.wire, sent))
            yield f"{number} produces {sent}", _with(s, number, produced)
        elif session.lives:
            yield from _look_up(v, s, number, session)
        if session.lives:
            yield from _own(v, s, number, session)


def _heads(
    wire: tuple[tuple[int, int], ...],
) -> Iterator[tuple[tuple[tuple[int, int], ...], tuple[int, int]]]:
    """Yield the first message on the wire to each partition, and what is left behind it."""
    for partition in (OLD, NEW):
        for place, one in enumerate(wire):
            if one[1] == partition:
                yield (*wire[:place], *wire[place + 1 :]), one
                break


def _arrive(s: State, one: tuple[int, int], *, owned: bool) -> State:
    message, partition = one
    if message <= s.seen:
        return s
    wrong = s.wrong
    if message > s.seen + 1:
        wrong |= {ORDER}
    if owned and partition == OLD and s.has_moved:
        wrong |= {BACK}
    return s._replace(seen=message, has_moved=s.has_moved or partition == NEW, wrong=wrong)


def _look_up(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if session.used != UNKNOWN and session.looking == UNKNOWN and session.used == OLD:
        looking = session._replace(looking=s.registry, is_older=False)
        yield f"{number} begins a look-up", _with(s, number, looking)
    if session.looking != UNKNOWN:
        is_left_out = v.discards_older and session.is_older
        brought = session._replace(
            looking=UNKNOWN, is_older=False, read=session.read if is_left_out else session.looking
        )
        yield f"{number} ends a look-up", _with(s, number, brought)
    if session.used != session.read and (not session.wire or not v.waits or session.used == UNKNOWN):
        used = session._replace(used=session.read, awaits=False)
        yield f"{number} uses what it read", _with(s, number, used)


def _own(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if s.owner == NOBODY:
        needs_no_look = not v.reads_anew and session.used != UNKNOWN
        taken = session._replace(at=s.recorded, has_read_anew=needs_no_look)
        yield f"{number} takes the lane", _with(s, number, taken)._replace(owner=number)
    if s.owner != number:
        return
    if not session.has_read_anew:
        anew = session._replace(
            read=s.registry,
            has_read_anew=True,
            awaits=s.registry != session.used,
            is_older=session.looking != UNKNOWN,
        )
        yield f"{number} reads the registry anew", _with(s, number, anew)
    elif not session.awaits and not session.secured and session.at < v.messages:
        yield f"{number} passes its barrier", _with(s, number, session._replace(secured=True))
    done = min((message for message, _ in session.wire), default=session.at + 1) - 1
    if done > s.recorded:
        yield f"{number} records up to {done}", s._replace(recorded=done)
    if s.hand_overs and not session.wire and not session.secured and s.recorded == session.at:
        yield f"{number} gives the lane back", s._replace(owner=NOBODY, hand_overs=s.hand_overs - 1)
    yield from _faults(s, number, session)


def _faults(s: State, number: int, session: Session) -> Iterator[Next]:
    if s.deaths:
        dead = _with(s, number, Session(lives=False, wire=session.wire))
        yield f"{number} dies", dead._replace(owner=NOBODY, deaths=s.deaths - 1)
    if s.pauses:
        # It goes on where it was: with what is on its wire, and with a page that has its barrier.
        paused = _with(s, number, session._replace(lives=False))
        yield f"{number} pauses past its lease", paused._replace(owner=NOBODY, pauses=s.pauses - 1)
    if s.restarts and not s.orphans:
        anew = Session(at=s.recorded)
        yield (
            f"{number} starts over",
            _with(s, number, anew)._replace(orphans=session.wire, restarts=s.restarts - 1),
        )


def missing(v: Variant, s: State) -> list[str]:
    """Return STUCK where messages are left in a state in which nothing more happens."""
    return [STUCK] if s.seen < v.messages and any(session.lives for session in s.sessions) else []
