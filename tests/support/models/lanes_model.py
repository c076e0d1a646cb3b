"""Relays that hand lanes over, as a state machine without a server: every interleaving, and what it breaks.

Two lanes of one key each, and relay sessions that join one after the other. A session may die between any two of its
steps, and its lease may run out between any two, as after a pause; then it goes on as a zombie at any later time. What
a session gave to Kafka arrives in its order at any later time or never, whatever became of the session.

    look        reads who leads and which lanes are free: stops reading all, or begins to take what is free. The
                product's own rule decides who leads; a session of the version before has its part of the lanes
    lock, progress, take    one transaction under the lock of outbox.lease; a death undoes it
    read, barrier, produce  a page of one message of each lane that it reads
    record      two steps: its check reads the lanes' rows without a lock, its commit may come after a take-over
    give back   lanes that it does not read any more, when all of them on the wire is recorded
    renew       extends a lease whose row is still there, even one that ran out
    hold        somebody locks the row of a lane for a time: it is neither taken nor given back

Checked in every state: LOSS, a message is recorded and not in Kafka. ORDER, a message appears before one in front of
it. OWNERS, a barrier or record of a session passed that speaks for a lane of another. TWICE, a message appears twice
although no session died and no lease ran out. STUCK, nothing more happens, and a lane has no living owner or messages
to publish, although a session lives that could have it; or two have lanes, and none is of the version before. `Variant`
takes single safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from outbox_relay.publisher.leading import leads

LOSS, ORDER, OWNERS, TWICE, STUCK = "LOSS", "ORDER", "OWNERS", "TWICE", "STUCK"
NO_SESSION = -1


@dataclass(frozen=True, slots=True)
class Variant:
    """Who takes part and what may happen; the other defaults are what the product does."""

    sessions: int = 2
    messages: tuple[int, int] = (2, 1)
    deaths: int = 0
    pauses: int = 0
    drains: int = 0
    holds: int = 0
    """How often somebody locks the row of the second lane."""
    older: frozenset[int] = frozenset()
    """The sessions of the version before."""
    yields: bool = True
    """Whether a session gives its lanes to an older one that has lanes, too."""
    give_back: str = "recorded"
    """When a lane is given back: all of it is "recorded", or only "acknowledged"."""
    takes_from_living: bool = False
    barrier_checks: bool = True
    record_checks: bool = True
    progress_before_lock: bool = False
    reads_on: bool = False
    """Whether a lane that is given back stays among those that are read."""
    records_unacknowledged: bool = False
    notices_loss: bool = True
    """Whether a session that has lost a lane ends when it looks."""
    starts_behind_doubts: bool = False
    """Whether a taker skips what the last owner may have given to Kafka."""


class Row(NamedTuple):
    """One row of outbox.lane, with the progress that publications of its epoch add up to."""

    epoch: int = NO_SESSION
    owned: bool = False
    progress: int = 0


class Lane(NamedTuple):
    """What one session knows of one lane: positions up to which it read, produced, recorded; `arrived` is Kafka's."""

    has: bool = False
    reads: bool = False
    leaves: bool = False
    at: int = 0
    sent: int = 0
    arrived: int = 0
    recorded: int = 0


class Session(NamedTuple):
    """One session of a relay; its number is its epoch."""

    at: str = "out"
    lease: str = ""
    """ "live", "over" (its time ran out), or "gone" (its row was cleared)."""
    drains: bool = False
    lanes: tuple[Lane, Lane] = (Lane(), Lane())
    secured: bool = False
    """Whether the page that was read has its barrier."""
    taking: tuple[tuple[int, int], ...] = ()
    """The lanes that are being taken, each with the progress that was read."""
    recording: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> bool:
        """Whether its process takes steps."""
        return self.at not in {"out", "dead"}

    @property
    def lives(self) -> bool:
        """Whether others see it as living: by its database session and its lease."""
        return self.runs and self.lease == "live"

    @property
    def has_page(self) -> bool:
        return any(lane.at > lane.sent for lane in self.lanes)


class State(NamedTuple):
    """Everything at one moment."""

    sessions: tuple[Session, ...]
    rows: tuple[Row, Row] = (Row(), Row())
    lock: int = NO_SESSION
    seen: tuple[int, int] = (0, 0)
    """Per lane, up to which message Kafka has them all."""
    clean: bool = True
    deaths: int = 0
    pauses: int = 0
    drains: int = 0
    holds: int = 0
    is_held: bool = False
    """Whether somebody holds the row of the second lane."""
    wrong: frozenset[str] = frozenset()


Next = tuple[str, State]


def start(v: Variant) -> State:
    """The state before any relay joins."""
    return State((Session(),) * v.sessions, deaths=v.deaths, pauses=v.pauses, drains=v.drains, holds=v.holds)


def with_session(s: State, number: int, session: Session) -> State:
    """Replace a session of this number."""
    sessions = (*s.sessions[:number], session, *s.sessions[number + 1 :])
    return s._replace(sessions=sessions)


def _lanes(session: Session, changed: dict[int, Lane]) -> Session:
    first, second = (changed.get(n, lane) for n, lane in enumerate(session.lanes))
    return session._replace(lanes=(first, second))


def _rows(s: State, changed: dict[int, Row]) -> State:
    first, second = (changed.get(n, row) for n, row in enumerate(s.rows))
    return s._replace(rows=(first, second))


def _broken(s: State, name: str) -> State:
    return s._replace(wrong=s.wrong | {name})


def _end(s: State, number: int) -> State:
    """End a session: its transaction is undone, what it gave to Kafka may still arrive."""
    was = s.sessions[number]
    left = tuple(Lane(sent=lane.sent, arrived=lane.arrived) for lane in was.lanes)
    lock = NO_SESSION if s.lock == number else s.lock
    return with_session(s, number, Session("dead", was.lease, lanes=(left[0], left[1])))._replace(lock=lock)


def _is_free(s: State, lane: int, taker: int) -> bool:
    row = s.rows[lane]
    return not row.owned or (row.epoch != taker and not s.sessions[row.epoch].lives)


def _wanted(v: Variant, s: State, number: int) -> frozenset[int]:
    """The lanes that a session wants."""
    me = s.sessions[number]
    if me.drains:
        return frozenset()
    if number in v.older:
        return _part(s, number)
    has_lanes = any(lane.has for lane in me.lanes)
    if has_lanes and not v.yields:
        return frozenset({0, 1})
    owners = {row.epoch for row in s.rows if row.owned} - {number, *v.older}
    others = [n for n in owners if s.sessions[n].lives and not s.sessions[n].drains]
    is_leader = leads(number, has_lanes=has_lanes, first=min(others, default=None))
    return frozenset({0, 1} if is_leader else ())


def _part(s: State, number: int) -> frozenset[int]:
    """The part of a session of the version before; what it has, while its own lease is over."""
    me = s.sessions[number]
    if not me.lives:
        return frozenset(n for n, lane in enumerate(me.lanes) if lane.has)
    living = [n for n, each in enumerate(s.sessions) if each.lives and not each.drains]
    rank = living.index(number)
    least, more = divmod(2, len(living))
    first = rank * least + min(rank, more)
    return frozenset(range(first, first + least + (rank < more)))


def _owns(s: State, number: int, lane: int) -> bool:
    return s.rows[lane].owned and s.rows[lane].epoch == number


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    for number, session in enumerate(s.sessions):
        if session.at == "out":
            yield f"{number} joins", with_session(s, number, Session("loop", "live"))
            break  # They join in the order of their epochs.
    if s.is_held:
        yield "the row is free", s._replace(is_held=False)
    elif s.holds and s.lock == NO_SESSION:
        yield "somebody locks the row", s._replace(is_held=True, holds=s.holds - 1)
    for number, session in enumerate(s.sessions):
        yield from _arrivals(v, s, number)
        if session.runs:
            yield from _faults(s, number, session)
            if session.at == "loop":
                yield from _balance(v, s, number, session)
                yield from _publish(v, s, number, session)
                yield from _record(v, s, number, session)
                yield from _give_back(v, s, number, session)
            elif session.at == "recording":
                yield from _commit_record(v, s, number, session)
            else:
                yield from _take(v, s, number, session)


def _faults(s: State, number: int, session: Session) -> Iterator[Next]:
    if s.deaths:
        yield f"{number} dies", _end(s, number)._replace(deaths=s.deaths - 1, clean=False)
    if s.pauses and session.lease == "live":
        over = with_session(s, number, session._replace(lease="over"))
        yield f"{number}: its lease runs out", over._replace(pauses=s.pauses - 1, clean=False)
    if session.lease == "over" and s.lock in {NO_SESSION, number}:
        yield f"{number} renews", with_session(s, number, session._replace(lease="live"))
    if session.lease == "gone":
        yield f"{number} cannot renew", _end(s, number)
    if s.drains and not session.drains:
        yield (
            f"{number} is asked to drain",
            with_session(s, number, session._replace(drains=True))._replace(drains=s.drains - 1),
        )


def _arrivals(v: Variant, s: State, number: int) -> Iterator[Next]:
    """Let Kafka receive the next message of a lane, from a session that may be long dead."""
    session = s.sessions[number]
    for n, lane in enumerate(session.lanes):
        if lane.arrived == lane.sent:
            continue
        message = lane.arrived + 1
        after = with_session(s, number, _lanes(session, {n: lane._replace(arrived=message)}))
        if message > s.seen[n] + 1:
            after = _broken(after, ORDER)
        elif message <= s.seen[n] and s.clean:
            after = _broken(after, TWICE)
        seen = [*s.seen]
        seen[n] = max(message, seen[n])
        yield f"{number}: message {message} of lane {n} arrives", after._replace(seen=(seen[0], seen[1]))


def _balance(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    lost = any(lane.has and not _owns(s, number, n) for n, lane in enumerate(session.lanes))
    if lost and v.notices_loss:
        yield f"{number} finds lanes lost", _end(s, number)
        return
    wanted = _wanted(v, s, number)
    leaving = {
        n: lane._replace(
            leaves=True, reads=lane.reads and v.reads_on, at=lane.at if v.reads_on else lane.sent
        )
        for n, lane in enumerate(session.lanes)
        if lane.has and not lane.leaves and n not in wanted
    }
    free = [
        n
        for n in sorted(wanted)
        if not session.lanes[n].has and (v.takes_from_living or _is_free(s, n, number))
    ]
    if leaving or free:
        after = _lanes(session, leaving)
        if free:
            taking = tuple((n, s.rows[n].progress if v.progress_before_lock else 0) for n in free)
            after = after._replace(at="wants", taking=taking)
        yield f"{number} looks", with_session(s, number, after)


def _take(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if session.at == "wants" and s.lock == NO_SESSION:
        if session.lease == "gone":
            yield f"{number} finds its lease ended", _end(s, number)
            return
        free = tuple(
            (n, known)
            for n, known in session.taking
            if (v.takes_from_living or _is_free(s, n, number)) and not (s.is_held and n == 1)
        )
        after = session._replace(lease="live", taking=free, at="locked" if free else "loop")
        yield f"{number} locks", with_session(s, number, after)._replace(lock=number if free else NO_SESSION)
    elif session.at == "locked":
        known = session.taking
        if not v.progress_before_lock:
            known = tuple((n, _start_of(v, s, n)) for n, _ in session.taking)
        yield f"{number} reads progress", with_session(s, number, session._replace(taking=known, at="knows"))
    elif session.at == "knows":
        lanes = {n: Lane(True, True, False, p, p, p, p) for n, p in session.taking}
        taken = with_session(s, number, _lanes(session, lanes)._replace(at="loop", taking=()))
        taken = _rows(taken, {n: Row(number, True, p) for n, p in session.taking})
        yield f"{number} takes {sorted(lanes)}", _clear(taken._replace(lock=NO_SESSION), number)


def _start_of(v: Variant, s: State, lane: int) -> int:
    if not v.starts_behind_doubts:
        return s.rows[lane].progress
    return max(s.rows[lane].progress, *(each.lanes[lane].sent for each in s.sessions))


def _clear(s: State, number: int) -> State:
    """Delete the leases of the dead that own no lane any more."""
    for other, session in enumerate(s.sessions):
        owns = any(_owns(s, other, lane) for lane in range(2))
        if other != number and session.lease and not session.lives and not owns:
            s = with_session(s, other, session._replace(lease="gone"))
    return s


def _publish(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if not session.has_page:
        page = {
            n: lane._replace(at=lane.at + 1)
            for n, lane in enumerate(session.lanes)
            if lane.reads and lane.at < v.messages[n]
        }
        if page:
            yield (
                f"{number} reads a page",
                with_session(s, number, _lanes(session, page)._replace(secured=False)),
            )
    elif not session.secured:
        named = [n for n, lane in enumerate(session.lanes) if lane.has]
        if v.barrier_checks and not all(_owns(s, number, n) for n in named):
            yield f"{number} is refused its barrier", _end(s, number)
            return
        after = with_session(s, number, session._replace(secured=True))
        foreign = any(
            lane.at > lane.sent and s.rows[n].owned and s.rows[n].epoch != number
            for n, lane in enumerate(session.lanes)
        )
        yield f"{number} makes its barrier", _broken(after, OWNERS) if foreign else after
    else:
        sent = {n: lane._replace(sent=lane.at) for n, lane in enumerate(session.lanes)}
        yield f"{number} produces", with_session(s, number, _lanes(session, sent)._replace(secured=False))


def _record(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    known = tuple(
        (n, lane.sent if v.records_unacknowledged else lane.arrived)
        for n, lane in enumerate(session.lanes)
        if (lane.sent if v.records_unacknowledged else lane.arrived) > lane.recorded
    )
    if not known:
        return
    if v.record_checks and not all(_owns(s, number, n) for n, _ in known):
        yield f"{number} is refused its record", _end(s, number)
        return
    after = with_session(s, number, session._replace(at="recording", recording=known))
    foreign = any(s.rows[n].owned and s.rows[n].epoch != number for n, _ in known)
    yield f"{number} records", _broken(after, OWNERS) if foreign else after


def _commit_record(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    recorded = dict(session.recording)
    lanes = {n: session.lanes[n]._replace(recorded=upto) for n, upto in recorded.items()}
    after = with_session(s, number, _lanes(session, lanes)._replace(at="loop", recording=()))
    rows = {n: s.rows[n]._replace(progress=upto) for n, upto in recorded.items() if s.rows[n].epoch == number}
    after = _rows(after, rows)
    lost = any(row.progress > s.seen[n] for n, row in rows.items())
    yield f"{number} commits its record", _broken(after, LOSS) if lost else after


def _give_back(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    locked = {n for n, _ in s.sessions[s.lock].taking} if s.lock != NO_SESSION else set[int]()
    locked |= {1} if s.is_held else set()
    given = {}
    for n, lane in enumerate(session.lanes):
        settled = lane.sent == lane.arrived and (lane.recorded == lane.sent or v.give_back == "acknowledged")
        if lane.leaves and settled and _owns(s, number, n) and n not in locked:
            given[n] = lane._replace(has=False, leaves=False)
    if given:
        after = _rows(s, {n: s.rows[n]._replace(owned=False) for n in given})
        yield f"{number} gives back {sorted(given)}", with_session(after, number, _lanes(session, given))
