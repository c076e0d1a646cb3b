"""A message that is taken with the commit of the one before, as a state machine without servers; see `ahead_threads`.

Two messages of two keys, and two members that each read from the stored offset at any time, so one of them may be a
zombie. A member runs message 0, and sends its commit with the row of message 1 behind it:

    sent         PostgreSQL has what was sent and has run nothing of it
    committed    it has run the commit, and reported it; the row of message 1 is next, or waits for another transaction
    took         it has inserted the row of message 1, or found it there

The member notes the end of message 0 from `committed` on, whatever becomes of the row of message 1. A commit may be
refused; a member may die, or lose its connection, or have its partition given away between any two steps.

Checked: TWICE, an effect is applied twice. LOST, nothing more happens, and a message has no effect. `Ahead` takes
single safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.support.models.search import Found, explore

TWICE, LOST = "TWICE", "LOST"
FREE = -1
MESSAGES = (0, 1)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How often each thing may happen, and the safeguards; their defaults are what the product does."""

    refusals: int = 1
    """How often a commit is refused."""
    deaths: int = 1
    losses: int = 1
    """How often a connection is lost."""
    moves: int = 1
    """How often a partition is given away after the row of the next message was taken."""
    notes_when: str = "committed"
    """When message 0 counts as done: its commit is "committed", or "sent"."""
    stops_at_error: bool = True
    """Whether PostgreSQL skips the row of the next message if the commit was refused."""
    gives_back: bool = True
    """Whether the next message is given back if the commit before it failed."""
    keeps_taken: bool = False
    """Whether the next message counts as taken on another connection, too."""
    closes: bool = True
    """Whether the connection is closed if the next message is not run; otherwise its transaction is committed."""


class Member(NamedTuple):
    """One member: `next` is the message that it is at."""

    at: str = "out"
    next: int = 0
    row: int = FREE
    """The row of the inbox in its open transaction."""
    noted: frozenset[int] = frozenset()
    """What counts as done, and is not stored yet."""
    is_new: bool = True
    """Whether the next message was new when its row was taken ahead."""


class State(NamedTuple):
    """Everything at one moment."""

    members: tuple[Member, ...]
    refusals: int
    deaths: int
    losses: int
    moves: int
    inbox: frozenset[int] = frozenset()
    effects: tuple[int, ...] = ()
    offset: int = 0
    wrong: frozenset[str] = frozenset()


Next = tuple[str, State]


def search(v: Ahead, until: str = "") -> Found:
    """Visit every reachable state, nearest first, until this is found wrong."""
    start = State((Member(),) * 2, v.refusals, v.deaths, v.losses, v.moves)
    return explore(start, lambda state: _steps(v, state), _missing, until=until)


def _missing(s: State) -> list[str]:
    return [] if set(MESSAGES) <= set(s.effects) else [LOST]


def _steps(v: Ahead, s: State) -> Iterator[Next]:
    if s.wrong:
        return
    for number, member in enumerate(s.members):
        yield from _member(v, s, number, member)
        yield from _faults(v, s, number, member)


def _with(s: State, number: int, member: Member) -> State:
    return s._replace(members=(*s.members[:number], member, *s.members[number + 1 :]))


def _commit(s: State, message: int, *, row: bool = True) -> State:
    wrong = s.wrong | {TWICE} if message in s.effects else s.wrong
    inbox = s.inbox | {message} if row else s.inbox
    return s._replace(inbox=inbox, effects=(*s.effects, message), wrong=wrong)


def _is_locked(s: State, number: int, message: int) -> bool:
    return any(each.row == message for other, each in enumerate(s.members) if other != number)


def _member(v: Ahead, s: State, number: int, member: Member) -> Iterator[Next]:
    at, message, row, noted, is_new = member
    done = noted | {message}
    if at == "out":
        yield f"{number} starts", _with(s, number, Member("idle", s.offset))
    if noted and min(noted) == s.offset:
        after = _with(s, number, member._replace(noted=noted - {s.offset}))
        yield f"{number} stores an offset", after._replace(offset=s.offset + 1)
    if at == "idle" and message in MESSAGES:
        if message in s.inbox:
            yield f"{number} is refused {message}", _with(s, number, Member("idle", message + 1, noted=done))
        elif not _is_locked(s, number, message):
            yield f"{number} takes {message}", _with(s, number, Member("runs", message, message, noted))
    elif at == "runs" and message == MESSAGES[-1]:
        after = _with(s, number, Member("idle", message + 1, noted=done))
        yield f"{number} commits {message}", _commit(after, message, row=row == message)
    elif at == "runs":
        noted = done if v.notes_when == "sent" else noted
        yield f"{number} sends the commit of {message}", _with(s, number, Member("sent", message, row, noted))
    elif at == "sent":
        after = _with(s, number, Member("committed", message, FREE, noted))
        yield f"{message} of {number} is committed", _commit(after, message)
        if s.refusals:
            yield from _refuse(v, s._replace(refusals=s.refusals - 1), number, member)
    elif at == "committed":
        if message not in noted:
            yield f"{number} notes {message}", _with(s, number, member._replace(noted=done))
        following = message + 1
        if following in s.inbox:
            yield f"{number} finds {following}", _with(s, number, Member("took", message, FREE, noted, False))
        elif not _is_locked(s, number, following):
            yield (
                f"{number} has the row of {following}",
                _with(s, number, Member("took", message, following, noted)),
            )
    elif at == "took":
        # The reply to the commit comes first, so its end is noted by now, or in this step.
        following = message + 1
        goes_on = Member("runs", following, row, done)
        if not is_new:
            goes_on = Member("idle", following + 1, noted=done | {following})
        yield f"{number} goes on", _with(s, number, goes_on)


def _refuse(v: Ahead, s: State, number: int, member: Member) -> Iterator[Next]:
    """Refuse the commit of a message; its transaction is rolled back."""
    following = member.next + 1
    row = FREE
    if not v.stops_at_error and following not in s.inbox and not _is_locked(s, number, following):
        row = following
    noted = member.noted if v.gives_back else member.noted | {following}
    after = Member("idle", member.next + (v.notes_when == "sent"), row, noted)
    if row != FREE:
        # What is open is committed with the next try of the message that was refused.
        s = s._replace(inbox=s.inbox | {row})
        after = after._replace(row=FREE)
    yield f"the commit of {number} is refused", _with(s, number, after)


def _faults(v: Ahead, s: State, number: int, member: Member) -> Iterator[Next]:
    at, message, row, noted, is_new = member
    if at == "out":
        return
    if s.deaths:
        yield f"{number} dies", _with(s, number, Member())._replace(deaths=s.deaths - 1)
    if s.losses and at not in ("idle", "runs"):
        # What was not reported is unknown: the message is taken again, and refused if it was committed.
        after = Member("idle", message, FREE, noted)
        if message in noted:
            after = Member("idle", message + 1, FREE, noted)
        if at == "took" and v.keeps_taken and is_new:
            after = Member("runs", message + 1, FREE, noted | {message})
        yield f"the connection of {number} is lost", _with(s, number, after)._replace(losses=s.losses - 1)
    if s.moves and at == "took" and is_new:
        given_away = _with(s, number, Member("idle", s.offset))._replace(moves=s.moves - 1)
        if not v.closes:
            given_away = given_away._replace(inbox=s.inbox | {row})
        yield f"the partition of {number} is given away", given_away
