"""Schedules of the model of half messages, driven step by step on real PostgreSQL with the product's own statements.

What the model says of a step is asserted as it is taken: whether it waits, what it answers, who is refused. After each
step the committed state of the message, its lock and the business row are compared with the model's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from uuid import UUID

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.checking import Answer, LocalTransactionState
from outbox.checking.claiming import claim
from outbox.checking.finding import enqueue
from outbox.checking.group_settings import GroupSettings
from outbox.checking.settling import Reply, Settled, expire, settle
from outbox.checking.transaction import transaction
from outbox.errors import DecidedOtherwiseError
from outbox.records import HalfMessage
from tests.support.locks import see_blocked
from tests.support.models.half_model import (
    COMMITTED,
    EXHAUSTED,
    ROLLED_BACK,
    UNBORN,
    UNKNOWN,
    State,
    Step,
    Variant,
)
from tests.support.plain_inserts import Connection
from tests.support.plain_inserts import connect as connect_plainly
from tests.support.waiting import wait_until

STATES = {UNKNOWN: "UNKNOWN", COMMITTED: "COMMITTED", ROLLED_BACK: "ROLLED_BACK", EXHAUSTED: "EXHAUSTED"}
ANSWERS = {UNKNOWN: "UNKNOWN", COMMITTED: "COMMIT", ROLLED_BACK: "ROLLBACK"}
POLICIES = {ROLLED_BACK: "ROLLBACK", EXHAUSTED: "EXHAUSTED"}
SETTLED = {
    "done": Settled(decided=1),
    "decided already": Settled(decided_before=1),
    "locked": Settled(locked=1),
    "counted": Settled(unknown=1),
    "late": Settled(late=1),
}

BUSINESS = "CREATE TABLE IF NOT EXISTS business (id text PRIMARY KEY)"
LOOK = """
    SELECT m.state, NOT EXISTS (SELECT FROM outbox.message f WHERE f.id = m.id FOR UPDATE SKIP LOCKED)
    FROM outbox.message m WHERE m.id = %s
"""
MET = """
    INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at)
    SELECT m.id, m.message_id, m.producer_group, clock_timestamp() FROM outbox.message m
    WHERE m.id = %s AND NOT EXISTS (SELECT FROM outbox.pending_check p WHERE p.id = m.id)
"""
DUE = """
    UPDATE outbox.pending_check SET due_at = '-infinity', answered_at = clock_timestamp()
    WHERE id IN (SELECT id FROM outbox.pending_check WHERE id = %s FOR UPDATE SKIP LOCKED)
"""
DECIDE = """
    UPDATE outbox.message SET state = %s, remark = 'operator' WHERE id = %s AND state IN ('UNKNOWN', 'EXHAUSTED')
"""
HISTORY = """
    SELECT coalesce(array_agg(to_state ORDER BY happened_at) FILTER (WHERE kind = 'transition'), '{}'),
           count(*) FILTER (WHERE kind = 'check' AND answer = 'UNKNOWN')
    FROM outbox.event WHERE id = %s
"""


class HalfStage:
    """Connections for the actors of schedules, used again for each schedule; a session that dies is replaced."""

    def __init__(self, dsn: str, business_dsn: str | None = None) -> None:
        self._dsn, self._business_dsn = dsn, business_dsn or dsn
        self._observer, self._business_observer = connect(dsn), connect(self._business_dsn)
        self._business_observer.execute(BUSINESS)
        self._conns = {actor: connect(dsn) for actor in "paboe"}
        self._business = connect(self._business_dsn)
        self._threads = ThreadPoolExecutor(3)
        self._numbers = count(1)

    def close(self) -> None:
        """End whatever still runs."""
        for conn in (*self._conns.values(), self._business, self._observer, self._business_observer):
            conn.close()
        self._threads.shutdown()

    def run(self, v: Variant, schedule: Sequence[tuple[Step, State]]) -> None:
        """Take the steps of one schedule, comparing each with the model."""
        self._variant, self._half = v, HalfMessage(0, UUID(int=0), "")
        self._number = next(self._numbers)
        self._group = f"g{self._number}"
        self._outbox = Outbox(producer_group=self._group)
        self._dead = False
        self._waiting: dict[str, Future[object]] = {}
        self._claims: dict[str, Reply] = {}
        taken: list[str] = []
        try:
            for step, after in schedule:
                taken.append(str(step))
                self._take(step)
                self._compare(after)
            self._judge([step for step, _ in schedule], schedule[-1][1])
        except BaseException as error:
            error.add_note(f"schedule: {'; '.join(taken)}")
            raise

    # Steps ---------------------------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        does = {"p": self._producer, "e": self._policy, "o": self._operator}.get(step.actor, self._checker)
        does(step)

    def _producer(self, step: Step) -> None:
        p, q = self._conns["p"], self._business_session
        match step.name:
            case "half":
                p.execute("BEGIN")
                self._half = self._outbox.prepare(p, Message("t", "k", b"", biz_id=self._group))
            case "write":
                _begin(q)
                q.execute("SAVEPOINT local")
                q.execute("INSERT INTO business VALUES (%s)", [self._group])
            case "undo":
                q.execute("ROLLBACK TO local")
            case "end":
                p.execute("COMMIT")
            case "end business" | "late commit lands":
                q.execute("COMMIT")
            case "abort":
                self._abort()
            case "dies":
                self._dead = (
                    True  # it sends nothing any more; what the server makes of that are steps of their own
                )
            case "session ends":
                self._conns["p"] = self._end(p, self._dsn)
            case "business session ends":
                self._business = self._end(q, self._business_dsn)
            case name:
                self._producers_lock(name, step.outcome)

    def _producers_lock(self, name: str, outcome: str) -> None:
        p, half = self._conns["p"], self._half
        call: Callable[[], object] = {
            "join": lambda: self._outbox.join(p, half),
            "commit": lambda: self._outbox.commit(p, half),
            "withdraw": lambda: self._outbox.rollback(p, half),
        }[name]
        _begin(p)
        if outcome == "waits":
            self._waits("p", call)
        elif outcome.startswith("raises"):
            with pytest.raises(DecidedOtherwiseError):
                self._go_on("p", call, outcome)
            if not self._dead:
                self._abort()
        else:
            decision = self._go_on("p", call, outcome)
            if name != "join":
                assert getattr(decision, "repeated", None) is outcome.startswith("repeated")

    def _checker(self, step: Step) -> None:
        me = step.actor
        conn = self._conns[me]
        group = GroupSettings(self._group, check_after=0.0)
        match step.name, step.outcome:
            case "claim", outcome:
                transaction(conn, me, enqueue(group))
                self._observer.execute(DUE, [self._half.id])
                found = transaction(conn, me, claim(group, me, 1))
                assert [view.biz_id for view in found.views] == [self._group] * (outcome == "claimed")
                self._claims[me] = Reply(self._half.id, found.claim, 0, None)
            case "ask", outcome:
                there = self._business_is_there()
                assert there == (outcome == COMMITTED) or outcome == UNKNOWN
                answer = Answer(LocalTransactionState(ANSWERS[outcome]))
                self._claims[me] = self._claims[me]._replace(answer=answer)
            case "settle", outcome:
                conn.execute("BEGIN")
                assert (
                    transaction(conn, me, settle(group, [self._claims[me]]))._replace(ended=())
                    == SETTLED[outcome]
                )
                if outcome != "done":
                    conn.execute("COMMIT")
            case "commit", _:
                conn.execute("COMMIT")
            case "dies", _:
                self._conns[me] = self._end(conn, self._dsn)
            case unknown:
                raise AssertionError(unknown)

    def _policy(self, step: Step) -> None:
        conn = self._conns["e"]
        if step.name == "commit":
            conn.execute("COMMIT")
            return
        # Its last check was answered: the policy follows nothing else.
        group = GroupSettings(self._group, max_age=0.0, policy=POLICIES[self._variant.policy or ""])
        self._observer.execute(MET, [self._half.id])
        self._observer.execute(DUE, [self._half.id])
        conn.execute("BEGIN")
        done = [one.id for one in transaction(conn, "e", expire(group, [self._half.id])).ended]
        assert done == [self._half.id] * (step.outcome == "done")
        if not done:
            conn.execute("COMMIT")

    def _operator(self, step: Step) -> None:
        conn = self._conns["o"]
        match step.name, step.outcome:
            case "look", outcome:
                assert self._business_is_there() == (outcome == COMMITTED)
                self._verdict = STATES[outcome]
            case "decide", outcome:
                _begin(conn)

                def call() -> int:
                    return conn.execute(DECIDE, [self._verdict, self._half.id]).rowcount

                if outcome == "waits":
                    self._waits("o", call)
                else:
                    assert self._go_on("o", call, outcome) == int(outcome.startswith("done"))
                    if not outcome.startswith("done"):
                        conn.execute("COMMIT")
            case "commit", _:
                conn.execute("COMMIT")

    # Waiting, dying, comparing ---------------------------------------------------------------------------------

    def _waits(self, actor: str, call: Callable[[], object]) -> None:
        self._waiting[actor] = self._threads.submit(call)
        see_blocked(self._observer, self._conns[actor], self._waiting[actor])

    def _go_on(self, actor: str, call: Callable[[], object], outcome: str) -> object:
        if outcome.endswith("after waiting"):
            return self._waiting.pop(actor).result(20)
        return call()

    @property
    def _business_session(self) -> Connection:
        return self._business if self._variant.other_database else self._conns["p"]

    def _abort(self) -> None:
        for conn in {self._conns["p"], self._business_session}:
            if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                conn.execute("ROLLBACK")

    def _end(self, conn: Connection, dsn: str) -> Connection:
        """End a session as the server does when its client is gone; return when its locks are.

        In most schedules it only rolls back, which is all that others see of it, and takes a tenth of the time.
        """
        if self._number % 20:
            conn.execute("ROLLBACK")
            return conn
        pid = conn.info.backend_pid
        conn.close()
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        wait_until(lambda: self._observer.execute(gone, [pid]).fetchone() == (True,), "the session ends")
        return connect(dsn)

    def _business_is_there(self) -> bool:
        query = "SELECT EXISTS (SELECT FROM business WHERE id = %s)"
        return self._business_observer.execute(query, [self._group]).fetchone() == (True,)

    def _compare(self, after: State) -> None:
        row = self._observer.execute(LOOK, [self._half.id]).fetchone()
        if after.message == UNBORN:
            assert row is None
            return
        assert row is not None
        state, locked = row
        assert state == STATES[after.message]
        # Who waits for a lock that is free has it in a moment.
        assert locked == bool(after.holder) or (after.waiting and not after.holder)
        assert self._business_is_there() == after.business

    def _judge(self, steps: list[Step], last: State) -> None:
        """The audit tells one life: a birth, a decision at most (EXHAUSTED may be followed by one), each check."""
        row = self._observer.execute(HISTORY, [self._half.id]).fetchone()
        assert row is not None
        transitions, checks = row
        if last.message == UNBORN:
            assert not transitions
            return
        exhausted = ["EXHAUSTED"] if "EXHAUSTED" in transitions and last.message != EXHAUSTED else []
        decided = [STATES[last.message]] if last.message != UNKNOWN else []
        assert transitions == ["UNKNOWN", *exhausted, *decided]
        assert checks >= sum(step.outcome == "counted" for step in steps)


def connect(dsn: str) -> Connection:
    """Connect in autocommit, for commits that need not survive the server: there are ten thousands of them."""
    conn = connect_plainly(dsn)
    conn.execute("SET synchronous_commit = off")
    return conn


def _begin(conn: Connection) -> None:
    if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        conn.execute("BEGIN")
