"""What a crash of PostgreSQL takes back, as a state machine: when may a relay publish what it has read?

One server with a log, of which a crash keeps what is flushed; a standby that has what was sent to it. Transactions
commit at once or asynchronously, or abort, and take xids, which are issued again after a crash behind what is left of
the log. One relay reads by differences of snapshots.

    begin, commit, abort      each writes a record; a synchronous commit flushes, on the standby as well if there is one
    flush           all of the log, at any time
    look            reads the end of the log in front of the poll (a broken variant)
    read            takes a snapshot, the rows of the difference, and the end of the log; asks what is flushed
    ask             asks it later, of whatever server is there then (a broken variant)
    barrier         a flushed commit, which a standby has as well where commits wait for it
    publish, record    progress is a record of the log; in memory it ends with a crash. With a ledger it is kept outside
    disaster        a crash, or a fail-over to the standby, once. A page that is ready may still be published; the
                    session ends then, and records nothing more, except in a ledger

Checked at the end: GHOST, a message was published that is not committed. LOSS, one is committed and never published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

GHOST, LOSS = "GHOST", "LOSS"
Seen = tuple[int, tuple[int, ...]]
"""A snapshot: xmax, and who ran."""
NOTHING: Seen = (1, ())


@dataclass(frozen=True, slots=True)
class Variant:
    """The defaults are what the product does on a plain server."""

    secures: str = "in the statement"
    """What lets a page go out: a "barrier" only, the answer "in the statement", that for a position read "before" it,
    that of whatever server is there "later", or "nothing"."""
    disaster: str = "crash"
    has_standby: bool = False
    """Whether commits wait for a standby; "fail over" needs one."""
    asks_for_standbys: bool = True
    """Whether a page waits for a barrier where there is a standby."""
    ledger: bool = False
    """Whether progress is kept outside of the database."""
    work: tuple[str, ...] = ("insert", "abort", "insert")


class State(NamedTuple):
    """All there is."""

    log: tuple[tuple[str, int, int], ...] = ()
    """Records: (kind, xid, message); `insert`, `commit`, `end` without a message, and `progress` with an index."""
    flushed: int = 0
    sent: int = 0
    next_xid: int = 1
    ended: int = 0
    """The newest xid that has ended."""
    running: tuple[tuple[int, int, bool], ...] = ()
    """xid, message, whether it commits synchronously."""
    begun: int = 0
    phase: str = "idle"
    page: tuple[int, ...] = ()
    reached: Seen = NOTHING
    """The snapshot of the page."""
    end: int = 0
    """The end of the log that was read for the page."""
    memory: Seen = NOTHING
    snapshots: tuple[Seen, ...] = ()
    """Those that progress records name."""
    published: tuple[int, ...] = ()
    is_over: bool = False
    """Whether the disaster has been."""


def _committed(state: State) -> dict[int, int]:
    """Messages by the xids of committed transactions, as the log has them."""
    commits = {xid for kind, xid, _ in state.log if kind == "commit"}
    return {message: xid for kind, xid, message in state.log if kind == "insert" and xid in commits}


def _sees(seen: Seen, xid: int) -> bool:
    return xid < seen[0] and xid not in seen[1]


def _append(state: State, *records: tuple[str, int, int]) -> State:
    return state._replace(log=state.log + records)


def _flush(v: Variant, state: State) -> State:
    end = len(state.log)
    return state._replace(flushed=end, sent=end if v.has_standby else state.sent)


def _clients(v: Variant, s: State) -> Iterator[State]:
    if s.begun < len(v.work):
        xid, after = s.next_xid, s._replace(next_xid=s.next_xid + 1, begun=s.begun + 1)
        if v.work[s.begun] == "abort":
            yield _append(after, ("end", xid, 0))._replace(ended=xid)
        else:
            for waits in (False, True):
                running = (*s.running, (xid, s.begun, waits))
                yield _append(after, ("insert", xid, s.begun))._replace(running=running)
    for one in s.running:
        left = tuple(other for other in s.running if other != one)
        done = _append(s, ("commit", one[0], 0))._replace(running=left, ended=max(s.ended, one[0]))
        yield _flush(v, done) if one[2] else done
    if s.flushed < len(s.log):
        yield s._replace(flushed=len(s.log))


def _relay(v: Variant, s: State) -> Iterator[State]:
    if s.phase == "idle" and v.secures == "before":
        yield s._replace(phase="looked", end=len(s.log))
    elif s.phase in {"idle", "looked"}:
        seen = (s.ended + 1, tuple(sorted(xid for xid, _, _ in s.running if xid <= s.ended)))
        page = tuple(
            m for m, xid in sorted(_committed(s).items()) if _sees(seen, xid) and not _sees(s.memory, xid)
        )
        end = s.end if s.phase == "looked" else len(s.log)
        read = s._replace(page=page, reached=seen, end=end)
        if not page:
            # Only where it changes anything: polls go on for ever.
            if seen != s.memory:
                yield read._replace(phase="idle", memory=seen)
        elif v.secures == "later":
            yield read._replace(phase="asks")
        else:
            yield _answered(v, read)
    elif s.phase == "asks":
        yield _answered(v, s)
    elif s.phase == "unsafe":
        xid = s.next_xid
        made = _append(s._replace(next_xid=xid + 1, ended=xid, phase="ready"), ("end", xid, 0))
        yield _flush(v, made)
    elif s.phase == "held":
        yield s._replace(published=s.published + s.page, page=(), phase="idle")
    elif s.phase == "ready":
        yield s._replace(published=s.published + s.page, page=(), phase="published", memory=s.reached)
    elif s.phase == "published":
        snapshots = (*s.snapshots, s.memory)
        recorded = s._replace(snapshots=snapshots, phase="idle")
        if v.ledger:
            yield recorded
        else:
            xid = s.next_xid
            record = ("progress", xid, len(snapshots) - 1)
            yield _flush(v, _append(recorded._replace(next_xid=xid + 1, ended=xid), record))


def _answered(v: Variant, s: State) -> State:
    is_flushed = s.flushed >= s.end and not (v.has_standby and v.asks_for_standbys)
    is_safe = v.secures == "nothing" or (v.secures != "barrier" and is_flushed)
    return s._replace(phase="ready" if is_safe else "unsafe")


def _disaster(v: Variant, s: State) -> State:
    """Cut the log; what the relay holds ready it still publishes, all else it reads anew."""
    log = s.log[: s.flushed if v.disaster == "crash" else s.sent]
    newest = max((xid for _, xid, _ in log), default=0)
    kept = (
        s.snapshots
        if v.ledger
        else s.snapshots[: 1 + max((m for k, _, m in log if k == "progress"), default=-1)]
    )
    # Who asks later does so on another connection, and goes on with what it had read.
    phase = s.phase if s.phase == "asks" or v.ledger else "held"
    after = s._replace(
        log=log, flushed=len(log), sent=len(log), next_xid=newest + 1, ended=newest, running=(), is_over=True,
        snapshots=kept, memory=kept[-1] if kept else NOTHING,
    )  # fmt: skip
    return (
        after._replace(phase=phase) if s.phase in {"ready", "asks"} else after._replace(phase="idle", page=())
    )


def _next(v: Variant, s: State) -> Iterator[State]:
    yield from _clients(v, s)
    yield from _relay(v, s)
    if not s.is_over:
        yield _disaster(v, s)


def search(v: Variant) -> tuple[int, set[str]]:
    """Search every interleaving; return how many states there are, and what went wrong in one that is an end."""
    first = State()
    known, waiting, wrong = {first}, deque([first]), set[str]()
    while waiting:
        state = waiting.popleft()
        if state.published and set(state.published) - _committed(state).keys() and state.is_over:
            wrong.add(GHOST)
        is_end = state.begun == len(v.work) and not state.running and not any(_relay(v, state))
        if is_end and _committed(state).keys() - set(state.published):
            wrong.add(LOSS)
        for after in _next(v, state):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return len(known), wrong
