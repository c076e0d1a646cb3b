"""Consumers of one group, as a state machine without servers: every interleaving of their steps, and what it breaks.

One key with a few messages. Two members read it, each from the stored offset, at any time: so each message is
delivered again, and a member that was paused goes on as a zombie beside the new owner. Each has a pump for retries.
A member or a pump may die between any two steps, PostgreSQL may end its transaction, a handler may fail, or commit the
transaction that it was given and fail then, and the offset may be set back to zero.

    take        insert the inbox row: refused, or waits for the transaction that has inserted it and has not ended
    read held   lock the row of the held key, if there is one: then park the message behind it
    run, end    the handler, then one commit of inbox row and effect
    park        a new transaction: inbox row, parked row, held key
    gather      followers: the inbox rows of several messages, one after the other; lock the row of the held key, or
                roll back if there is none; park them all, and commit
    store       the offset of what is done
    drop        raise the floor of the group, commit; wait for transactions that may have read the floor before; drop
                the rows of the inbox. What is delivered below the floor is set aside as a dead letter
    pump        lock the one parked row of a key that is in state retry, run the handler; then lock the held key, delete
                the parked row, and let the next one follow or release the key, all in the handler's transaction

Checked in every state: TWICE, an effect is applied twice. ORDER, an effect comes before that of a message in front of
it. LOST, nothing more happens, and a message has no effect and is not parked. STUCK, nothing more happens, and a
message is parked behind none that is dead. `Inbox` takes single safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.models.inbox_variants import Inbox

TWICE, ORDER, LOST, STUCK = "TWICE", "ORDER", "LOST", "STUCK"
RETRY, WAITING, DEAD = "retry", "waiting", "dead"
FREE = -1


class Member(NamedTuple):
    """One member: `next` is the message that it is at; what it does with it is `at`."""

    at: str = "out"
    next: int = 0
    took: tuple[int, ...] = ()
    """The messages that it gathers, whose rows it has inserted."""


class Pump(NamedTuple):
    """One pump, with the message of the row that it has locked; `last` is what it read of the others."""

    at: str = "idle"
    row: int = FREE
    last: bool = False


class Replay(NamedTuple):
    """One replay; see `inbox_replay_model`."""

    at: str = "idle"
    noted: bool = False
    """Whether it is noted that the messages are parked."""
    waits: frozenset[int] = frozenset()
    """Members whose transactions it waits for."""
    rows: frozenset[int] = frozenset()
    """What it has parked."""


class State(NamedTuple):
    """Everything at one moment."""

    members: tuple[Member, ...]
    pumps: tuple[Pump, ...]
    inbox: frozenset[int] = frozenset()
    effects: tuple[int, ...] = ()
    parked: tuple[tuple[int, str], ...] = ()
    held: bool = False
    lock: int = FREE
    """Who has locked the row of the held key: a member by its number, a pump by 10 and its number."""
    offset: int = 0
    failures: int = 0
    deaths: int = 0
    moves: int = 0
    rewinds: int = 0
    timeouts: int = 0
    early_commits: int = 0
    drops: int = 0
    floor: bool = False
    aside: frozenset[int] = frozenset()
    """Dead letters that hold up no key."""
    begins: int = 0
    """The first message that the group reads; what an operator replays comes in an order of its own."""
    replay: Replay = Replay()
    wrong: frozenset[str] = frozenset()


Next = tuple[str, State]
GATHERING = frozenset({"gathers", "behind, all"})
IN_TRANSACTION = frozenset({"took", "behind", "runs", "parking"}) | GATHERING
"""With a row of the inbox."""
PUMP = 10


def start(v: Inbox) -> State:
    """The state before any member starts."""
    return State(
        (Member(),) * 2,
        (Pump(),) * v.pumps,
        failures=v.failures,
        deaths=v.deaths,
        moves=v.moves,
        rewinds=v.rewinds,
        timeouts=v.timeouts,
        early_commits=v.early_commits,
        drops=v.drops,
        offset=v.replayed if v.replays == "missing" else 0,
        begins=v.replayed if v.replays == "missing" else 0,
    )


def steps(v: Inbox, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    for number, member in enumerate(s.members):
        yield from _member(v, s, number, member)
        yield from _faults(s, number, member)
    for number, pump in enumerate(s.pumps):
        yield from _pump(v, s, number, pump)
    yield from _drop(v, s)
    if s.rewinds and s.offset:
        yield "the offset is set to 0", s._replace(offset=0, rewinds=s.rewinds - 1)


def _drop(v: Inbox, s: State) -> Iterator[Next]:
    """Raise the floor, and drop the rows; nothing of them is parked."""
    if v.drops and v.has_floor and not s.floor and (v.floor_first or not s.drops):
        yield "the floor is raised", s._replace(floor=True)
    if not s.drops or s.parked or s.aside or (v.has_floor and v.floor_first and not s.floor):
        return
    waits_for = IN_TRANSACTION | {"read the floor"} if v.drop_waits else IN_TRANSACTION
    if not any(each.at in waits_for for each in s.members):
        yield "the rows are dropped", s._replace(inbox=frozenset(), drops=s.drops - 1)


def _with(s: State, number: int, member: Member) -> State:
    return s._replace(members=(*s.members[:number], member, *s.members[number + 1 :]))


def _with_pump(s: State, number: int, pump: Pump) -> State:
    return s._replace(pumps=(*s.pumps[:number], pump, *s.pumps[number + 1 :]))


def _apply(s: State, message: int) -> State:
    """Commit an effect, and compare it with those before."""
    wrong = set(s.wrong)
    if message in s.effects:
        wrong.add(TWICE)
    elif any(each > message and (each < s.begins) == (message < s.begins) for each in s.effects):
        wrong.add(ORDER)
    return s._replace(effects=(*s.effects, message), wrong=frozenset(wrong))


def _unlock(s: State, owner: int) -> State:
    return s._replace(lock=FREE) if s.lock == owner else s


def _taken(s: State, number: int, message: int) -> bool:
    """Whether another member has inserted the inbox row, in a transaction that has not ended."""
    return any(
        each.at in IN_TRANSACTION and message in _rows(each)
        for other, each in enumerate(s.members)
        if other != number
    )


def _rows(member: Member) -> tuple[int, ...]:
    return member.took if member.at in GATHERING else (member.next,)


def _member(v: Inbox, s: State, number: int, member: Member) -> Iterator[Next]:
    at, message, took = member
    done = Member("idle", message + 1)
    if at == "out":
        yield f"{number} starts", _with(s, number, Member("idle", s.offset))
    elif at == "idle":
        if member.next > s.offset:
            yield f"{number} stores offset {message}", s._replace(offset=message)
        if message < v.messages and not v.drops:
            yield from _take(v, s, number, member)
            if v.gathers:
                yield f"{number} gathers from {message} on", _with(s, number, Member("gathers", message))
        elif message < v.messages:
            read = "is below the floor" if s.floor else "read the floor"
            yield f"{number} reads the floor", _with(s, number, Member(read, message))
    elif at == "read the floor":
        yield from _take(v, s, number, member)
    elif at == "is below the floor":
        if message in s.inbox:
            yield f"{number} is refused {message}", _with(s, number, done)
        elif not _taken(s, number, message):
            yield f"{number} sets {message} aside", _set_aside(_with(s, number, done), message)
    elif at == "took":
        if not (s.held and v.reads_held):
            yield f"{number} runs {message}", _with(s, number, Member("runs", message))
        elif not v.locks_held:
            yield f"{number} finds the key held", _with(s, number, Member("behind", message))
        elif s.lock == FREE:
            after = _with(s, number, Member("behind", message))
            yield f"{number} locks the held key", after._replace(lock=number)
    elif at == "behind":
        after = _unlock(_with(s, number, done), number)
        yield f"{number} parks {message} behind others", _park(v, after, message, WAITING)
    elif at == "runs":
        after = _apply(_with(s, number, done), message)
        inbox = after.inbox | {message} if v.has_inbox else after.inbox
        yield f"{number} commits {message}", after._replace(inbox=inbox)
        if s.failures:
            failed = _with(s, number, Member("failed", message))._replace(failures=s.failures - 1)
            if v.stores_when == "failed":
                failed = failed._replace(offset=max(s.offset, message + 1))
            yield f"{number} fails with {message}", failed
        if s.early_commits:
            early = _apply(_with(s, number, Member("failed", message)), message)
            early = early._replace(inbox=early.inbox | {message}, early_commits=s.early_commits - 1)
            yield f"the handler of {number} commits {message}", early
    elif at == "failed":
        if v.parks_with_inbox and message in s.inbox:
            yield f"{number} finds {message} done", _with(s, number, done)
        elif s.floor and not v.parks_above_floor:
            yield f"{number} forgets {message}", _with(s, number, done)
        elif s.floor and not _taken(s, number, message):
            yield f"{number} sets {message} aside", _set_aside(_with(s, number, done), message)
        elif not (v.parks_with_inbox and _taken(s, number, message)):
            yield f"{number} begins to park {message}", _with(s, number, Member("parking", message))
    elif at == "gathers":
        yield from _gather(v, s, number, member)
    elif at == "behind, all":
        after = _unlock(_with(s, number, Member("idle", message)), number)
        for each in took if v.gathers_in_order else reversed(took):
            after = _park(v, after, each, WAITING)
        yield f"{number} parks {took} behind others", after
    elif at == "parking":
        after = _park(v, _with(s, number, done), message, RETRY)
        yield f"{number} parks {message}", after._replace(held=True)


def _gather(v: Inbox, s: State, number: int, member: Member) -> Iterator[Next]:
    """Insert one more row, which waits for a transaction that has inserted it; or lock the held key."""
    _, message, took = member
    if message < v.messages and message in s.inbox:
        yield f"{number} is refused {message}", _with(s, number, Member("gathers", message + 1, took))
    elif message < v.messages and not _taken(s, number, message):
        after = _with(s, number, Member("gathers", message + 1, (*took, message)))
        yield f"{number} takes {message}, too", after
    if not took and message == v.messages:
        yield f"{number} has gathered nothing", _with(s, number, Member("idle", message))
    if took and v.gathers_held and not s.held:
        yield f"{number} rolls back", _with(s, number, Member("idle", took[0]))
    elif took and s.lock == FREE:
        yield (
            f"{number} locks the held key",
            _with(s, number, Member("behind, all", message, took))._replace(lock=number),
        )


def _take(v: Inbox, s: State, number: int, member: Member) -> Iterator[Next]:
    message = member.next
    if message in s.inbox:
        yield f"{number} is refused {message}", _with(s, number, Member("idle", message + 1))
    elif not (v.has_inbox and _taken(s, number, message)):
        yield f"{number} takes {message}", _with(s, number, Member("took", message))
    elif not v.waits_for_takers:
        yield f"{number} leaves {message} to another", _with(s, number, Member("idle", message + 1))


def _park(v: Inbox, s: State, message: int, state: str) -> State:
    inbox = s.inbox | {message} if v.parks_with_inbox else s.inbox
    return s._replace(inbox=inbox, parked=(*s.parked, (message, state)))


def _set_aside(s: State, message: int) -> State:
    return s._replace(inbox=s.inbox | {message}, aside=s.aside | {message})


def _faults(s: State, number: int, member: Member) -> Iterator[Next]:
    if member.at == "out":
        return
    if s.deaths:
        after = _unlock(_with(s, number, Member()), number)
        yield f"{number} dies", after._replace(deaths=s.deaths - 1)
    if s.moves and member.at == "idle" and member.next != s.offset:
        after = _with(s, number, Member("idle", s.offset))
        yield f"{number} is given the partition again", after._replace(moves=s.moves - 1)
    if s.timeouts and member.at in IN_TRANSACTION | {"read the floor"}:
        first = member.took[0] if member.took else member.next
        after = _unlock(_with(s, number, Member("idle", first)), number)
        yield f"PostgreSQL ends the transaction of {number}", after._replace(timeouts=s.timeouts - 1)


def _pump(v: Inbox, s: State, number: int, pump: Pump) -> Iterator[Next]:
    me = PUMP + number
    if pump.at != "idle" and s.deaths:
        after = _unlock(_with_pump(s, number, Pump()), me)
        yield f"pump {number} dies", after._replace(deaths=s.deaths - 1)
    if pump.at == "idle":
        locked = {each.row for each in s.pumps if each.at != "idle"}
        for message, state in s.parked:
            if message not in locked and (state == RETRY or (v.pump_takes == "any" and state != DEAD)):
                yield (
                    f"pump {number} takes {message}",
                    _with_pump(s, number, Pump("runs", message)),
                )
    elif pump.at == "runs":
        if v.pump_deletes == "later":
            yield (
                f"pump {number} commits {pump.row}",
                _apply(_with_pump(s, number, pump._replace(at="applied")), pump.row),
            )
        elif v.pump_releases == "later":
            after = _without(_apply(s, pump.row), pump.row)
            yield (
                f"pump {number} commits {pump.row}",
                _with_pump(after, number, pump._replace(at="applied", row=FREE)),
            )
        elif v.pump_reads == "before":
            after = _with_pump(s, number, pump._replace(at="read", last=len(s.parked) == 1))
            yield f"pump {number} reads what is parked", after
        else:
            yield from _lock(s, number, pump)
        if s.failures:
            after = _with_pump(s, number, Pump())._replace(failures=s.failures - 1)
            yield f"pump {number} fails with {pump.row}", after
        if s.early_commits:
            after = _apply(_with_pump(s, number, Pump()), pump.row)._replace(
                early_commits=s.early_commits - 1
            )
            if v.pump_marks:
                rows = tuple((row, DEAD if row == pump.row else state) for row, state in s.parked)
                after = after._replace(parked=rows)
            yield f"the handler of pump {number} commits {pump.row}", after
    elif pump.at == "read" or (pump.at == "applied" and v.pump_releases == "later") or pump.at == "applied":
        yield from _lock(s, number, pump)
    elif pump.at == "locked":
        yield f"pump {number} ends {pump.row}", _end(v, s, number, pump)


def _lock(s: State, number: int, pump: Pump) -> Iterator[Next]:
    if s.lock == FREE:
        after = _with_pump(s, number, pump._replace(at="locked"))
        yield f"pump {number} locks the held key", after._replace(lock=PUMP + number)


def _without(s: State, message: int) -> State:
    return s._replace(parked=tuple(row for row in s.parked if row[0] != message))


def _end(v: Inbox, s: State, number: int, pump: Pump) -> State:
    if v.pump_deletes != "later" and v.pump_releases != "later":
        s = _apply(s, pump.row)
    s = _without(s, pump.row)
    empty = pump.last if v.pump_reads == "before" else not s.parked
    if empty:
        s = s._replace(held=False)
    elif s.parked:
        s = s._replace(parked=((s.parked[0][0], RETRY), *s.parked[1:]))
    return _unlock(_with_pump(s, number, Pump()), PUMP + number)
