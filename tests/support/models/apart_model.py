"""A topic that is read apart as a state machine without a server: every interleaving, and what it breaks.

One lane with two topics, A and B, and relay sessions that have it one after the other: the one before has given it
back, has died, or was paused past its lease and goes on at any later time. A transaction writes a flood of A; others
write messages of both afterwards. A page of a poll is two messages, one of a list is one or two. A message of A may
fail until its cause is repaired: it parks its key, and the key of all messages of A is the same. Steps of a session:

    takes                  the lane, with the recorded progress, and whether the key is parked
    polls                  what is visible and was not before; more than a page: A is read apart from here on
    lists, reads ahead     A's list, and its next page: whether a message waits is what is true then
    secures, produces      a page; what waits, or was drained, is passed over; what fails, or is held, becomes a claim
    records                the oldest batch on the wire that has arrived: publications, claims, what was drained
    drains                 what waits, when nothing is on the wire; a whole topic when none of it can be listed
    goes back              to what is recorded, as lanes do that were set aside or stopped
    loses its producer     Kafka refuses a message of A; goes back, and lists of A what was visible then
    gives the lane back    when nothing is on the wire

What a session gave to Kafka arrives in its order at any later time, or never once it has died.

Checked in every state: ORDER, a message appears before one of its topic in front of it. TWICE, a message appears again
although no session has died, was paused, or lost its producer. At the end: LOSS, a message is not in Kafka. STUCK, a
message still waits. `Variant` takes single safeguards away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from tests.support.models.apart_state import (
    LOSS,
    NOBODY,
    NONE,
    ORDER,
    PAGE,
    STUCK,
    TWICE,
    Batch,
    Ids,
    Page,
    Part,
    Progress,
    Session,
    State,
    Variant,
)

Next = tuple[str, State]


def start(v: Variant) -> State:
    """The state before any relay runs."""
    return State((Session(),) * v.sessions, deaths=v.deaths, backs=v.backs, failures=v.failures)


def missing(v: Variant, s: State) -> Iterator[str]:
    """Yield what is wrong with a state in which nothing more happens, and the owner of the lane lives."""
    if s.owner == NOBODY or not s.sessions[s.owner].runs:
        return
    if s.waiting or s.parked:
        yield STUCK
    if len(s.seen) < len(v.topics):
        yield LOSS


def steps(v: Variant, s: State) -> Iterator[Next]:
    """Yield every step that can be taken now, with the state that it leads to."""
    if s.wrong:
        return
    if s.commits < len(v.transactions):
        yield "a transaction commits", s._replace(commits=s.commits + 1)
    if v.bad and not s.fixed:
        yield "the cause is repaired", s._replace(fixed=True)
    if s.parked and s.fixed and not s.requested:
        yield "a drain is requested", s._replace(requested=True)
    for number, session in enumerate(s.sessions):
        if session.at == "out":
            if s.owner == NOBODY or v.takes_from_living or not s.sessions[s.owner].runs:
                yield f"{number} takes the lane", _taken(v, s, number)
            break
    for number, session in enumerate(s.sessions):
        yield from _arrival(v, s, number, session)
        if session.runs:
            if s.deaths:
                yield f"{number} dies", _dead(s, number)._replace(deaths=s.deaths - 1, unclean=True)
            yield from _loop(v, s, number, session)


def _visible(v: Variant, s: State) -> Ids:
    return frozenset(range(sum(v.transactions[: s.commits])))


def _with(s: State, number: int, session: Session) -> State:
    return s._replace(sessions=(*s.sessions[:number], session, *s.sessions[number + 1 :]))


def _dead(s: State, number: int) -> State:
    session = s.sessions[number]
    return _with(s, number, Session("dead", wire=session.wire, arrived=session.arrived))


def _taken(v: Variant, s: State, number: int) -> State:
    known = s.progress if v.compares else s.progress._replace(partial=False)
    session = Session("loop", known, parked=s.parked, behind=True, recorded=known)
    is_paused = s.owner != NOBODY and s.sessions[s.owner].runs
    return _with(s, number, session)._replace(owner=number, unclean=s.unclean or is_paused)


def _arrival(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    rows = [row for batch in session.wire for row in batch.rows]
    if session.arrived == len(rows):
        return
    row = rows[session.arrived]
    wrong = {*s.wrong}
    if any(v.topics[other] == v.topics[row] and other not in s.seen for other in range(row)):
        wrong.add(ORDER)
    if row in s.seen and not s.unclean:
        wrong.add(TWICE)
    after = _with(s, number, session._replace(arrived=session.arrived + 1))
    yield f"{number}: {row} arrives", after._replace(seen=s.seen | {row}, wrong=frozenset(wrong))


def _without_producer(v: Variant, s: State, number: int, session: Session) -> State:
    recorded = session.recorded
    held = next(one for one in session.wire if any(v.topics[row] == "A" for row in one.rows))
    part = None if held.is_drain else Part(recorded, held.seen)
    if part is not None and not v.care_ends_at_seen:
        of_topic = (row for row in sorted(held.seen - recorded.seen) if v.topics[row] == "A")
        part = Part(recorded, _visible(v, s), _unpublished(s, of_topic, recorded))
    left = Session("loop", recorded, part, parked=s.parked, behind=True, recorded=recorded)
    left = left._replace(drained=session.drained)
    return _with(s, number, left)._replace(failures=s.failures - 1, unclean=True)


def _loop(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    yield from _record(v, s, number, session)
    if (
        s.failures
        and s.owner == number
        and any(v.topics[row] == "A" for one in session.wire for row in one.rows)
    ):
        yield f"{number} loses its producer", _without_producer(v, s, number, session)
    if any(batch.is_whole for batch in session.wire):
        return  # its last page is recorded before the lane is read
    if session.pages:
        if session.secured:
            yield f"{number} produces {session.pages[0].rows}", _with(s, number, _produced(v, s, session))
        elif s.owner == number:
            yield f"{number} makes its barrier", _with(s, number, session._replace(secured=True))
        else:
            yield f"{number} is refused its barrier", _dead(s, number)
        return
    yield from _poll(v, s, number, session)
    yield from _list(v, s, number, session)
    if session.wire:
        return
    if s.owner != number:
        yield f"{number} finds another owner", _dead(s, number)
        return
    if s.waiting and s.requested and session.parked and _may_drain(v, session):
        rows = tuple(sorted(s.waiting))[: v.of_drain]
        progress = session.rest if session.part is None else _floor_of_parts(v, session)
        if not v.drains_record_reading:
            progress = session.recorded
        batch = Batch(rows, progress, is_drain=True, is_whole=len(rows) == len(s.waiting))
        remembered = NONE if v.whole_topic else frozenset(rows)
        drained = session._replace(wire=(batch,), drained=session.drained | remembered)
        yield f"{number} drains {rows}", _with(s, number, drained)
    if s.backs:
        back = session._replace(rest=session.recorded, part=None, ahead=())
        yield f"{number} goes back", _with(s, number, back)._replace(backs=s.backs - 1)
    if number + 1 < len(s.sessions):
        yield f"{number} gives the lane back", _with(s, number, Session("left"))._replace(owner=NOBODY)


def _may_drain(v: Variant, session: Session) -> bool:
    if session.behind or not v.whole_topic:
        return not session.behind
    is_open = session.part is not None and session.part.target is not None
    progress = session.rest if session.part is None else session.part.base
    return not (is_open and v.waits_for_lists) and not (progress.partial and v.waits_above_floors)


def _found(v: Variant, s: State, progress: Progress, topics: str) -> tuple[int, ...]:
    """What a poll finds: visible, and not visible before."""
    return tuple(row for row in sorted(_visible(v, s) - progress.seen) if v.topics[row] in topics)


def _unpublished(s: State, rows: Iterable[int], progress: Progress) -> tuple[int, ...]:
    return tuple(row for row in rows if not (progress.partial and row in s.published))


def _pages(s: State, *pages: Page) -> tuple[Page, ...]:
    """Leave out what has a publication, and then pages without a message that is to be published."""
    read = [
        page._replace(
            rows=tuple(row for row in _unpublished(s, page.rows, page.before) if row not in s.waiting)
        )
        for page in pages
    ]
    return tuple(page for page in read if page.rows)


def _poll(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    visible, rest, part = Progress(_visible(v, s)), session.rest, session.part
    if rest == visible and (part is None or part.target is not None) and not session.behind:
        return
    read = session._replace(rest=visible, behind=False, secured=False)
    if part is None:
        rows = _found(v, s, rest, "AB")
        if len(rows) <= PAGE:
            read = read._replace(pages=_pages(s, Page(rows, False, rest, visible, visible.seen)))
            yield f"{number} polls {rows}", _with(s, number, read)
            return
        rows = _found(v, s, rest, "B")
        pages = _pages(s, Page(rows, False, rest, visible, visible.seen))
        yield (
            f"{number} reads A apart, and {rows}",
            _with(s, number, read._replace(part=Part(rest, visible.seen), pages=pages)),
        )
    elif part.target is not None:
        rows = _found(v, s, rest, "B" if v.waits_behind else "AB")
        pages = _pages(s, Page(rows, False, rest, visible, visible.seen))
        yield f"{number} polls {rows}", _with(s, number, read._replace(pages=pages))
    elif not v.joins_in_one_snapshot:
        yield f"{number} lets A join", _with(s, number, session._replace(part=None))
    else:
        of_rest, of_part = _found(v, s, rest, "B"), _found(v, s, part.base, "A")
        pages = _pages(
            s,
            Page(of_rest, False, rest, visible, visible.seen),
            Page(of_part, True, part.base, visible, visible.seen),
        )
        joined = read._replace(part=Part(visible, None), pages=pages, joins=True)
        yield f"{number} polls {of_rest} and {of_part}", _with(s, number, _joined(joined))


def _joined(session: Session) -> Session:
    if session.joins and not session.pages:
        return session._replace(part=None, joins=False)
    return session


def _list(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    part = session.part
    if part is None or part.target is None:
        return
    if part.left is None:
        of_topic = (row for row in sorted(part.target - part.base.seen) if v.topics[row] == "A")
        listed = part._replace(left=_unpublished(s, of_topic, part.base))
        yield f"{number} lists {listed.left}", _with(s, number, session._replace(part=listed))
    elif not session.ahead and part.left:
        ahead = tuple((row, row in s.waiting) for row in part.left[: v.of_list])
        yield f"{number} reads {ahead} ahead", _with(s, number, session._replace(ahead=ahead))
    else:
        left = part.left[v.of_list :]
        # While the list is open its part has come no further than where it began.
        after = part._replace(left=left) if left else Part(Progress(part.target), None)
        rows = tuple(row for row, waited in session.ahead if not waited)
        page = Page(rows, True, part.base, after.base, part.target)
        taken = session._replace(part=after, ahead=(), pages=(page,) if rows else (), secured=False)
        yield f"{number} takes {rows} of the list", _with(s, number, taken)


def _produced(v: Variant, s: State, session: Session) -> Session:
    page, pages = session.pages[0], session.pages[1:]
    messages, claims, parked = [], [], session.parked
    for row in page.rows:
        if row in session.drained and v.passes_over_drained:
            continue
        if v.topics[row] == "A" and (parked or (row in v.bad and not s.fixed)):
            claims.append(row)
            parked = True
        else:
            messages.append(row)
    batch = Batch(tuple(messages), _floor(v, session, page, pages), frozenset(claims), page.seen)
    wire = (*session.wire, batch) if messages or claims else session.wire
    return _joined(session._replace(pages=pages, parked=parked, wire=wire))


def _floor(v: Variant, session: Session, page: Page, pages: tuple[Page, ...]) -> Progress:
    """What is recorded when a page is published: the least progress of the parts; what is read only does not count."""
    if session.part is None or not v.least_floor:
        return page.after
    pending = {one.of_part: one.before for one in pages}
    return _floor_of_parts(v, session, pending if page.of_part else pending | {False: page.after})


def _floor_of_parts(
    v: Variant, session: Session, instead: Mapping[bool, Progress] = MappingProxyType({})
) -> Progress:
    """The least progress of the parts; `instead` of some, by whether they are topic A's."""
    part = session.part
    assert part is not None
    of_part = part.base if v.open_list_is_behind or part.target is None else Progress(part.target)
    known = {False: session.rest, True: of_part, **instead}
    return Progress(min((one.seen for one in known.values()), key=len), partial=True)


def _record(v: Variant, s: State, number: int, session: Session) -> Iterator[Next]:
    if not session.wire or session.arrived < len(session.wire[0].rows):
        return
    batch = session.wire[0]
    if s.owner != number:
        yield f"{number} is refused its record", _dead(s, number)
        return
    arrived = session.arrived - len(batch.rows)
    left = session._replace(wire=session.wire[1:], arrived=arrived, recorded=batch.progress)
    progress = batch.progress
    if batch.claims and not v.claims_are_partial:
        progress = progress._replace(partial=False)
    # A batch of claims alone records no progress.
    s = s._replace(
        progress=progress if batch.rows else s.progress,
        published=s.published | frozenset(batch.rows),
        waiting=s.waiting | batch.claims,
        parked=s.parked or bool(batch.claims),
    )
    if batch.is_drain:
        s = s._replace(waiting=s.waiting - frozenset(batch.rows))
    if batch.is_whole:
        left = left._replace(parked=False)
        s = s._replace(parked=False, requested=False)
    yield f"{number} records {batch.rows}", _with(s, number, left)
