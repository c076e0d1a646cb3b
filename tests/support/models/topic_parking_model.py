"""A parked topic and its drains as a state machine without a server: every interleaving, and what it breaks.

One lane, one topic with the keys A (messages 0, 2, 4 …) and B (1, 3, …), and relay sessions that take the lane one
after the other: the one before has died, or was paused past its lease and goes on at any later time. The topic is
closed (paused, or missing) and opened again, at any time; a session notices each of them at any later time. One message
of A may be one that cannot be published until an operator repairs its cause. The last message is sent at any time.
Steps of a session:

    takes     the lane, and loads which topic and key are parked, and what waits
    reads     up to what is committed, makes its barrier, and produces: a message of the parked topic becomes a claim of
              it, else one of the parked key a claim of that; the first one for a closed topic parks it
    drains    the topic, or the key on request: what is listed, in pages of 1 and 2 messages; of the topic, what fails
              or belongs to the parked key is claimed for the key
    records   the oldest batch on the wire that has arrived: progress, claims, what became of a drain

    gives up  what is on the wire and has not arrived, because its partition has no leader: it becomes claims of the
              topic, with a record of what has arrived. What has not arrived of a drain goes on waiting, and what it has
              moved to the key is claimed

What a session gave to Kafka arrives in its order at any later time, or never once it has died, or was given up.

Checked in every state: ORDER, a message appears before one of its key in front of it; TWICE, one appears twice although
no session died or was replaced; OPERATOR, one in front of the message that fails waits for the key. At the end: LOSS, a
message is not in Kafka; STUCK, one still waits. `Variant` takes single safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

LOSS, ORDER, STUCK, TWICE, OPERATOR = "LOSS", "ORDER", "STUCK", "TWICE", "OPERATOR"
NOBODY = -1
Ids = frozenset[int]
NONE: Ids = frozenset()
OF_TOPIC, OF_KEY = "topic", "key"
LATE = "given up"


@dataclass(frozen=True, slots=True)
class Variant:
    """Who takes part and what may happen; the other defaults are what the product does."""

    sessions: int = 2
    deaths: int = 1
    messages: int = 4
    flips: int = 2
    """How often the topic is closed or opened; it is open at first if that is even."""
    poison: int = NOBODY
    """The message that cannot be published, until it is repaired."""
    leaders_lost: int = 0
    """How often a session gives up what is on its wire."""
    claims_given_up: bool = True
    """Whether what is given up waits for the topic; else it counts as published."""
    parks_given_up: bool = True
    """Whether newer messages wait behind what was given up, too."""
    claims_given_up_drains: bool = True
    """Whether what a drain moved to the key is claimed for it although the drain is given up."""
    claims_with_record: bool = True
    """Whether claims are written when what is in front of them has arrived, or when they are made."""
    loads_topics: bool = True
    """Whether a session that takes the lane reads which topic is parked."""
    settles_first: bool = True
    """Whether a drain begins when nothing is on the wire."""
    ends_before_reading: bool = True
    """Whether the last page of a drain is recorded before the lane is read again."""
    drains_before_reading: bool = True
    """Whether messages wait until the topic is drained; else until it is open again."""
    asks_keys_in_drains: bool = True
    """Whether a drain of the topic holds messages of the parked key."""
    publishes_in_front: bool = True
    """Whether a drain of the topic publishes what is in front of all that waits for the parked key."""
    records_given_up_drains: bool = True
    """Whether what has arrived of a drain that is given up waits no longer."""
    fails_in_drains: bool = True
    """Whether a message that fails in a drain of the topic parks its key; else it is left out."""
    keeps_request: bool = True
    """Whether the drain of a key that finds the topic closed is done after the topic."""
    checks_owner: bool = True
    """Whether a record checks who has the lane."""


class Batch(NamedTuple):
    """What was produced together; `drain`: of what it is one; `done`: what waits no longer."""

    rows: tuple[int, ...]
    progress: Ids
    of_topic: Ids = NONE
    of_key: Ids = NONE
    drain: str = ""
    done: Ids = NONE
    is_whole: bool = False
    parks: bool = False
    """Whether it parks the topic without a message of it."""
    parks_key: bool = False
    """Whether the message that fails is in it: the row of the key is made with its claim. Others only name the key."""


class Session(NamedTuple):
    """One session; its number is its epoch."""

    at: str = "out"
    progress: Ids = NONE
    is_open: bool = True
    """Whether it knows the topic as one that can be published to."""
    topic: bool = False
    key: bool = False
    """Whether the topic, and the key A, are parked in its memory."""
    drain: str = ""
    pages: int = 0
    wire: tuple[Batch, ...] = ()
    arrived: int = 0

    @property
    def runs(self) -> bool:
        return self.at == "in"


class State(NamedTuple):
    """Everything at one moment."""

    sessions: tuple[Session, ...]
    committed: Ids
    is_open: bool
    flips: int
    deaths: int
    poison: int
    """The message that fails now."""
    leaders_lost: int = 0
    owner: int = NOBODY
    progress: Ids = NONE
    of_topic: Ids = NONE
    of_key: Ids = NONE
    topic: bool = False
    key: bool = False
    requested: bool = False
    asked: bool = False
    """Whether the drain of the key was requested, which is done once."""
    seen: Ids = NONE
    wrong: frozenset[str] = frozenset()

    @property
    def waiting(self) -> Ids:
        return self.of_topic | self.of_key


Next = tuple[str, State]


def start(v: Variant) -> State:
    """The state before any relay runs."""
    committed = frozenset(range(v.messages - 1))
    return State(
        (Session(),) * v.sessions,
        committed,
        v.flips % 2 == 0,
        v.flips,
        v.deaths,
        v.poison,
        v.leaders_lost,
    )


def missing(v: Variant, s: State) -> Iterator[str]:
    """Yield what is wrong with a state in which nothing more happens, and the owner of the lane lives."""
    if s.owner == NOBODY or not s.sessions[s.owner].runs:
        return
    if s.waiting or s.topic or s.key:
        yield STUCK
    if not frozenset(range(v.messages)) <= s.seen:
        yield LOSS


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    if (last := v.messages - 1) not in s.committed:
        yield f"{last} is sent", s._replace(committed=s.committed | {last})
    if s.flips:
        word = "closed" if s.is_open else "opened"
        yield f"the topic is {word}", s._replace(is_open=not s.is_open, flips=s.flips - 1)
    if s.poison != NOBODY:
        yield "the cause is repaired", s._replace(poison=NOBODY)
    if s.key and s.poison == NOBODY and not s.asked:
        yield "a drain of the key is requested", s._replace(requested=True, asked=True)
    for number, session in enumerate(s.sessions):
        if session.at == "out":
            loaded = Session("in", s.progress, s.is_open, s.topic and v.loads_topics, s.key)
            yield f"{number} takes the lane", _with(s, number, loaded)._replace(owner=number)
            break
    for number, session in enumerate(s.sessions):
        yield from _arrival(s, number, session)
        if session.at == LATE:
            yield f"{number}: its producer is closed", _with(s, number, Session("dead"))
        if session.runs:
            if s.deaths:
                yield f"{number} dies", _dead(s, number)._replace(deaths=s.deaths - 1)
            yield from _turn(v, s, number, session)


def _with(s: State, number: int, session: Session) -> State:
    return s._replace(sessions=(*s.sessions[:number], session, *s.sessions[number + 1 :]))


def _dead(s: State, number: int) -> State:
    session = s.sessions[number]
    return _with(s, number, Session("dead", wire=session.wire, arrived=session.arrived))


def _arrival(s: State, number: int, session: Session) -> Iterator[Next]:
    rows = [row for batch in session.wire for row in batch.rows]
    if session.arrived == len(rows):
        return
    row = rows[session.arrived]
    wrong = {*s.wrong}
    if any(other not in s.seen for other in range(row % 2, row, 2)):
        wrong.add(ORDER)
    if row in s.seen and all(one.at not in {"dead", LATE} for one in s.sessions) and s.owner == 0:
        wrong.add(TWICE)
    after = _with(s, number, session._replace(arrived=session.arrived + 1))
    yield f"{number}: {row} arrives", after._replace(seen=s.seen | {row}, wrong=frozenset(wrong))


def _turn(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if session.is_open is not s.is_open:
        yield f"{number} notices the topic", _with(s, number, session._replace(is_open=s.is_open))
    yield from _record(v, s, number, session)
    if s.owner != number:
        yield f"{number} is refused its barrier", _dead(s, number)
        return
    if s.leaders_lost and session.arrived < sum(len(batch.rows) for batch in session.wire):
        yield f"{number} gives up its wire", _given_up(v, s, number, session)
    if v.ends_before_reading and any(batch.is_whole for batch in session.wire):
        return
    if s.committed - session.progress:
        yield f"{number} reads", _read(v, s, number, session)
    yield from _drain(v, s, number, session)


def _read(v: Variant, s: State, number: int, session: Session) -> State:
    rows, of_topic, of_key = [], set(), set()
    topic, key, parks_key = session.topic, session.key, False
    for row in sorted(s.committed - session.progress - s.waiting):
        if topic and (v.drains_before_reading or not session.is_open):
            of_topic.add(row)
        elif not session.is_open:
            topic = True
            of_topic.add(row)
        elif key and row % 2 == 0:
            of_key.add(row)
        elif row == s.poison:
            key = parks_key = True
            of_key.add(row)
        else:
            rows.append(row)
    batch = Batch(tuple(rows), s.committed, frozenset(of_topic), frozenset(of_key), parks_key=parks_key)
    if not v.claims_with_record:
        s = _claim(s, batch)
        batch = batch._replace(of_topic=NONE, of_key=NONE, parks_key=False)
    wire = (*session.wire, batch)
    return _with(s, number, session._replace(progress=s.committed, topic=topic, key=key, wire=wire))


def _drain(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if session.wire and (v.settles_first or any(batch.drain for batch in session.wire)):
        return
    for what in (OF_TOPIC, OF_KEY):
        if session.drain not in {"", what}:
            continue
        waits = s.of_topic if what == OF_TOPIC else s.of_key
        goes_on = session.drain == what
        may = (
            session.topic
            if what == OF_TOPIC
            else session.key and s.requested and (goes_on or not session.topic)
        )
        if what == OF_KEY and may and not session.is_open and s.key:
            # Its next message is sound: it is drained after the topic, which is parked, if it is not yet.
            batch = Batch((), session.progress, parks=True)
            ended = session._replace(drain="", pages=0, topic=True, wire=(*session.wire, batch))
            put_off = _with(s, number, ended)
            yield (
                f"{number} puts the drain of the key off",
                put_off if v.keeps_request else put_off._replace(requested=False),
            )
        elif may and session.is_open and (s.topic if what == OF_TOPIC else s.key):
            most = 2 if session.pages else 1
            listed = tuple(sorted(waits))[:most]
            yield f"{number} drains {listed} of the {what}", _drained(v, s, number, what, listed)


def _drained(v: Variant, s: State, number: int, what: str, listed: tuple[int, ...]) -> State:
    session = s.sessions[number]
    most = 2 if session.pages else 1
    rows: list[int] = []
    moved: set[int] = set()
    done: set[int] = set()
    key, ended, parks_key = session.key, False, False
    for row in listed:
        is_in_front = v.publishes_in_front and row < min(s.of_key | moved, default=0)
        if what == OF_TOPIC and v.asks_keys_in_drains and key and row % 2 == 0 and not is_in_front:
            moved.add(row)
        elif row == s.poison:
            if what == OF_KEY:
                ended = True
                break
            if v.fails_in_drains:
                key = parks_key = True
                moved.add(row)
            else:
                done.add(row)
        else:
            rows.append(row)
    is_whole = len(listed) < most and not ended
    gone = frozenset(rows) | done
    batch = Batch(
        tuple(rows), session.progress, NONE, frozenset(moved), what, gone, is_whole, parks_key=parks_key
    )
    drain, pages = ("", 0) if is_whole or ended else (what, session.pages + 1)
    return _with(s, number, session._replace(key=key, drain=drain, pages=pages, wire=(*session.wire, batch)))


def _claim(s: State, batch: Batch) -> State:
    wrong = s.wrong
    if any(row < s.poison and row % 2 == s.poison % 2 for row in batch.of_key):
        wrong |= {OPERATOR}
    return s._replace(
        wrong=wrong,
        of_topic=(s.of_topic | batch.of_topic) - batch.of_key,
        of_key=s.of_key | batch.of_key,
        topic=s.topic or bool(batch.of_topic) or batch.parks,
        key=s.key or batch.parks_key,
    )


def _given_up(v: Variant, s: State, number: int, session: Session) -> State:
    """What was on the wire may arrive later, as it may of a session that died."""
    s = s._replace(leaders_lost=s.leaders_lost - 1)
    first = session.wire[0]
    if first.drain:
        late = Session(LATE, wire=(first,), arrived=session.arrived)
        left = session._replace(wire=session.wire[1:], arrived=0, topic=True, drain="", pages=0)
        moved = Batch((), NONE, of_key=first.of_key, parks_key=first.parks_key)
        after = _with(_claim(s, moved) if v.claims_given_up_drains else s, number, left)._replace(topic=True)
        if v.records_given_up_drains:
            done = first.done - frozenset(first.rows[session.arrived :])
            after = after._replace(of_topic=after.of_topic - done, of_key=after.of_key - done)
        return after._replace(sessions=(*after.sessions, late))
    late = Session(LATE, wire=session.wire, arrived=session.arrived)
    rows = [row for batch in session.wire for row in batch.rows]
    waiting = frozenset(rows[session.arrived :]) if v.claims_given_up else NONE
    of_topic = waiting.union(*(batch.of_topic for batch in session.wire))
    of_key = NONE.union(*(batch.of_key for batch in session.wire))
    progress = NONE.union(*(batch.progress for batch in session.wire))
    parks = any(batch.parks for batch in session.wire)
    parks_key = any(batch.parks_key for batch in session.wire)
    claims = Batch((), NONE, of_topic, of_key, parks=parks, parks_key=parks_key)
    after = _claim(s._replace(progress=s.progress | progress), claims)
    left = session._replace(wire=(), arrived=0, topic=session.topic or v.parks_given_up)
    after = _with(after, number, left)
    return after._replace(sessions=(*after.sessions, late))


def _record(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if not session.wire or session.arrived < len(session.wire[0].rows):
        return
    batch = session.wire[0]
    if v.checks_owner and s.owner != number:
        yield f"{number} is refused its record", _dead(s, number)
        return
    after = _claim(s._replace(progress=s.progress | batch.progress), batch)
    left = session._replace(wire=session.wire[1:], arrived=session.arrived - len(batch.rows))
    if batch.drain == OF_TOPIC:
        after = after._replace(of_topic=after.of_topic - batch.done, topic=after.topic and not batch.is_whole)
        left = left._replace(topic=left.topic and not batch.is_whole)
    elif batch.drain == OF_KEY:
        after = after._replace(of_key=after.of_key - batch.done)
        if batch.is_whole:
            after, left = after._replace(key=False, requested=False), left._replace(key=False)
    yield f"{number} records", _with(after, number, left)
