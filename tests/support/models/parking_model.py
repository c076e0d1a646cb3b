"""A parked key and its drains as a state machine without a server: every interleaving, and what it breaks.

One lane with one order key, and relay sessions that take it one after the other: the one before has died, or was paused
past its lease and goes on at any later time. The last message is sent when the others are committed, at any later time.
Message 0 has the lowest position; its transaction may commit after others were read. Some messages cannot be published
until an operator repairs the cause. Steps of a session:

    takes, loads keys      the lane, and then which key is parked; a drain that is announced leaves what waits in doubt
    reads, barrier         what is committed and was not read; refused if the lane has another owner
    produces               up to the message that fails, which parks the key; what is behind it becomes claims
    announces              a drain: what of the key is published next, listed in the same statement
    drains                 produces what was listed, up to a message that fails
    records                the oldest batch on the wire that has arrived: publications, claims, what became of a drain

What a session gave to Kafka arrives in its order at any later time, or never once it has died. Operators request
drains, repair the cause, and give messages up: to DEAD where Kafka cannot have them, else to SKIPPED. Somebody holds
the key's row: no drain is announced (one that has begun begins again later), and a record leaves the row as it is. Or
the record of a drain waits for a lock, and is cancelled: the session ends.

Checked in every state: ORDER, a message appears before one in front of it. DEAD, a message that is DEAD is in Kafka.
At the end: LOSS, a message is neither in Kafka nor given up. STUCK, a message still waits. `Variant` takes single
safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LOSS, ORDER, DEAD, STUCK = "LOSS", "ORDER", "DEAD", "STUCK"
NOBODY = -1
Ids = frozenset[int]
NONE: Ids = frozenset()


@dataclass(frozen=True, slots=True)
class Variant:
    """Who takes part and what may happen; the other defaults are what the product does."""

    sessions: int = 2
    deaths: int = 1
    messages: int = 3
    bad: Ids = frozenset({1})
    late: bool = False
    """Whether message 0 commits late."""
    gives_up: int = 0
    deletes_by_id: bool = True
    """Whether a drain deletes what it listed; else all up to the highest of it, and goes on behind that."""
    lists_when_announcing: bool = True
    claims_with_record: bool = True
    """Whether claims are written when what is in front of them has arrived, or with the next barrier."""
    claims_lock: bool = True
    loads_keys: bool = True
    settles_first: bool = True
    """Whether a drain begins when nothing is on the wire."""
    checks_drains: bool = True
    """Whether the record of a drain checks who has the lane."""
    locks: int = 0
    """How often somebody locks the key's row."""
    times_out: bool = False
    """Whether the record of a drain waits for the lock, and is cancelled."""
    frees_with_row: bool = True
    """Whether memory lets the key go with its row; else with its last page, and a record of any page that finds the
    row locked holds it again."""
    ends_before_reading: bool = True
    """Whether the last page of a drain is recorded before the lane is read again."""
    doubts_drains: bool = True
    """Whether a drain that was announced and not recorded leaves what waits in doubt."""


class Batch(NamedTuple):
    """What was produced together; `done`: the listed messages of a drain that wait no longer."""

    rows: tuple[int, ...]
    progress: Ids
    claims: Ids = NONE
    parks: bool = False
    is_drain: bool = False
    done: Ids = NONE
    is_whole: bool = False
    failed: int | None = None


class Session(NamedTuple):
    """One session; its number is its epoch."""

    at: str = "out"
    progress: Ids = NONE
    parked: bool = False
    doubted: Ids = NONE
    page: tuple[int, ...] = ()
    secured: bool = False
    listed: tuple[int, ...] | None = None
    """What of the key a drain publishes; None: no drain is announced."""
    reached: int = -1
    """The highest message that the present drain produced."""
    pages: int = 0
    """How many pages of the present drain were produced."""
    wire: tuple[Batch, ...] = ()
    arrived: int = 0
    """How many messages of the wire Kafka has."""
    unwritten: Ids = NONE
    found_locked: bool = False
    """Whether a record has found the row locked, without `frees_with_row`."""
    checked: bool = False
    """Whether a record has read the owner of the lane, and is not committed."""

    @property
    def runs(self) -> bool:
        return self.at not in {"out", "dead"}


class State(NamedTuple):
    """Everything at one moment."""

    sessions: tuple[Session, ...]
    committed: Ids
    owner: int = NOBODY
    progress: Ids = NONE
    waiting: Ids = NONE
    doubtful: Ids = NONE
    parked: bool = False
    requested: bool = False
    draining: bool = False
    dead: Ids = NONE
    skipped: Ids = NONE
    seen: Ids = NONE
    fixed: bool = False
    deaths: int = 0
    gives_up: int = 0
    locks: int = 0
    locked: bool = False
    """Whether somebody holds the key's row."""
    wrong: frozenset[str] = frozenset()

    @property
    def given_up(self) -> Ids:
        return self.dead | self.skipped


Next = tuple[str, State]


def start(v: Variant) -> State:
    """The state before any relay runs."""
    committed = frozenset(range(1 if v.late else 0, v.messages - 1))
    return State((Session(),) * v.sessions, committed, deaths=v.deaths, gives_up=v.gives_up, locks=v.locks)


def missing(v: Variant, s: State) -> Iterator[str]:
    """Yield what is wrong with a state in which nothing more happens, and the owner of the lane lives."""
    if s.owner == NOBODY or not s.sessions[s.owner].runs:
        return
    if s.waiting or s.parked:
        yield STUCK
    if not frozenset(range(v.messages)) <= s.seen | s.given_up:
        yield LOSS


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    last = v.messages - 1
    if last not in s.committed:
        yield f"{last} is sent", s._replace(committed=s.committed | {last})
    if 0 not in s.committed:
        yield "0 commits", s._replace(committed=s.committed | {0})
    if not s.fixed:
        yield "the cause is repaired", s._replace(fixed=True)
    yield from _lock(s)
    yield from _operator(s)
    for number, session in enumerate(s.sessions):
        if session.at == "out":
            taken = session._replace(at="took", progress=s.progress)
            yield f"{number} takes the lane", _with(s, number, taken)._replace(owner=number)
            break
    for number, session in enumerate(s.sessions):
        yield from _arrival(v, s, number, session)
        if session.runs:
            if s.deaths:
                yield f"{number} dies", _dead(s, number)._replace(deaths=s.deaths - 1)
            yield from _loop(v, s, number, session)


def _with(s: State, number: int, session: Session) -> State:
    return s._replace(sessions=(*s.sessions[:number], session, *s.sessions[number + 1 :]))


def _dead(s: State, number: int) -> State:
    session = s.sessions[number]
    return _with(s, number, Session("dead", wire=session.wire, arrived=session.arrived))


def _lock(s: State) -> Iterator[Next]:
    if s.locked:
        yield "the lock of the row ends", s._replace(locked=False)
    elif s.locks and s.parked:
        yield "the row is locked", s._replace(locked=True, locks=s.locks - 1)


def _operator(s: State) -> Iterator[Next]:
    if s.draining or s.locked or not s.parked:
        return
    if not s.requested:
        yield "a drain is requested", s._replace(requested=True)
    if s.gives_up:
        for one in sorted(s.waiting):
            left = s._replace(waiting=s.waiting - {one}, requested=True, gives_up=s.gives_up - 1)
            if one in s.doubtful:
                yield f"{one} becomes SKIPPED", left._replace(skipped=s.skipped | {one})
            else:
                wrong = s.wrong | {DEAD} if one in s.seen else s.wrong
                yield f"{one} becomes DEAD", left._replace(dead=s.dead | {one}, wrong=wrong)


def _arrival(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    rows = [row for batch in session.wire for row in batch.rows]
    if session.arrived == len(rows):
        return
    row = rows[session.arrived]
    wrong = {*s.wrong}
    in_front = range(1 if v.late else 0, row) if row or not v.late else ()
    if any(other not in s.seen | s.given_up for other in in_front):
        wrong.add(ORDER)
    if row in s.dead:
        wrong.add(DEAD)
    after = _with(s, number, session._replace(arrived=session.arrived + 1))
    yield f"{number}: {row} arrives", after._replace(seen=s.seen | {row}, wrong=frozenset(wrong))


def _loop(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if session.at == "took":
        yield from _load(v, s, number, session)
        return
    yield from _record(v, s, number, session)
    if session.listed is not None:
        yield f"{number} drains {session.listed}", _with(s, number, _drained(v, s, session))
    elif session.page:
        if session.secured:
            yield f"{number} produces {session.page}", _with(s, number, _produced(v, s, session))
        elif s.owner == number:
            secured = _with(s, number, session._replace(secured=True, unwritten=NONE))
            if session.unwritten:
                secured = secured._replace(waiting=s.waiting | session.unwritten, parked=True)
            yield f"{number} makes its barrier", secured
        else:
            yield f"{number} is refused its barrier", _dead(s, number)
    else:
        yield from _read(v, s, number, session)
        yield from _announce(v, s, number, session)


def _load(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if s.owner != number:
        yield f"{number} finds another owner", _dead(s, number)
        return
    doubted = frozenset(range(max(s.committed) + 1))
    loaded = session._replace(at="loop", parked=s.parked and v.loads_keys, doubted=doubted)
    if number == 0:
        loaded = loaded._replace(doubted=NONE)
    doubtful = s.doubtful | (s.waiting if s.draining and v.doubts_drains else NONE)
    yield f"{number} loads keys", _with(s, number, loaded)._replace(doubtful=doubtful, draining=False)


def _read(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if v.ends_before_reading and any(batch.is_whole for batch in session.wire):
        return
    found = s.committed - session.progress
    if found:
        page = tuple(sorted(found - s.waiting - s.given_up))
        read = session._replace(progress=s.committed, page=page, secured=False)
        yield f"{number} reads {page}", _with(s, number, read)


def _produced(v: Variant, s: State, session: Session) -> Session:
    rows, claims, parked, parks = [], [], session.parked or session.found_locked, False
    for row in session.page:
        if parked or (row in v.bad and not s.fixed):
            claims.append(row)
            parks = parks or not parked
            parked = True
        else:
            rows.append(row)
    claimed = frozenset(claims)
    batch = Batch(tuple(rows), session.progress, claimed, parks)
    unwritten = NONE
    if not v.claims_with_record:
        batch, unwritten = batch._replace(claims=NONE, parks=False), claimed
    wire, unwritten = (*session.wire, batch), session.unwritten | unwritten
    return session._replace(
        page=(), secured=False, parked=parked, found_locked=False, wire=wire, unwritten=unwritten
    )


def _announce(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if not (session.parked and s.requested and s.parked) or session.unwritten:
        return
    if any(batch.is_drain or v.settles_first for batch in session.wire):
        return
    if s.locked:
        if session.pages:
            yield f"{number} puts its drain off", _with(s, number, session._replace(pages=0, reached=-1))
        return
    if s.owner != number:
        yield f"{number} is refused a drain", _dead(s, number)
        return
    listed = _waiting(v, s, session)
    if not v.lists_when_announcing:
        listed = (NOBODY,)
    announced = _with(s, number, session._replace(listed=listed))
    yield f"{number} announces {listed}", announced._replace(draining=True)


def _waiting(v: Variant, s: State, session: Session) -> tuple[int, ...]:
    left = (one for one in sorted(s.waiting) if v.deletes_by_id or one > session.reached)
    return tuple(left)[: 2 if session.pages else 1]


def _drained(v: Variant, s: State, session: Session) -> Session:
    most = 2 if session.pages else 1
    listed = session.listed or ()
    if listed == (NOBODY,):
        listed = _waiting(v, s, session)
    rows: list[int] = []
    failed = None
    for row in listed:
        if row in s.given_up:
            continue
        if row in v.bad and not s.fixed:
            failed = row
            break
        rows.append(row)
    gone = {row for row in listed if row in s.given_up}
    is_whole = len(listed) < most and failed is None
    done = frozenset(rows) | gone
    batch = Batch(tuple(rows), session.progress, NONE, False, True, done, is_whole, failed)
    is_over = is_whole or failed is not None
    return session._replace(
        listed=None,
        pages=0 if is_over else session.pages + 1,
        reached=-1 if is_over else max(rows, default=session.reached),
        parked=session.parked and (v.frees_with_row or not is_whole),
        wire=(*session.wire, batch),
    )


def _record(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if not session.wire or session.arrived < len(session.wire[0].rows):
        return
    batch = session.wire[0]
    checks = v.checks_drains or not batch.is_drain
    if not session.checked and checks and s.owner != number:
        yield f"{number} is refused its record", _dead(s, number)
        return
    if not v.claims_lock and not session.checked and batch.claims:
        yield f"{number} checks the owner", _with(s, number, session._replace(checked=True))
        return
    if batch.is_drain and s.locked and v.times_out:
        yield f"the record of {number} times out", _dead(s, number)
        return
    left = session._replace(wire=session.wire[1:], arrived=session.arrived - len(batch.rows), checked=False)
    after = _with(s, number, left)
    if s.owner == number and (batch.rows or batch.is_drain):
        # A batch of claims alone records no progress; publications of an earlier epoch speak for no lane any more.
        after = after._replace(progress=batch.progress)
    if batch.claims:
        after = after._replace(
            waiting=after.waiting | batch.claims,
            parked=after.parked or batch.parks,
            doubtful=after.doubtful | (batch.claims & session.doubted),
        )
    if batch.is_drain:
        after = _record_drain(v, after, batch, session.doubted)
        if s.locked and not v.frees_with_row:
            after = _with(after, number, left._replace(found_locked=True))
        elif not s.locked and v.frees_with_row and batch.is_whole:
            after = _with(after, number, left._replace(parked=False))
    yield f"{number} records {batch.rows}", after


def _record_drain(v: Variant, s: State, batch: Batch, doubted: Ids) -> State:
    done = batch.done
    if not v.deletes_by_id and done:
        done = frozenset(one for one in s.waiting if one <= max(done))
    s = s._replace(waiting=s.waiting - done)
    if s.locked:
        return s
    if batch.is_whole:
        return s._replace(parked=False, requested=False, draining=False)
    if batch.failed is None:
        return s
    one = frozenset({batch.failed})
    return s._replace(requested=False, draining=False, doubtful=(s.doubtful - one) | (one & doubted))
