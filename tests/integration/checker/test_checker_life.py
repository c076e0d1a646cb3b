"""The checker's process: killed, stopped, started too early, started twice, and its database restarted under it."""

from __future__ import annotations

import threading
from collections import Counter

from outbox_local.stack.api import Stack
from tests.support.callback_peer import Line, Peer, answering, reply
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.waiting import wait_until


class Counting:
    """Answers COMMIT and counts the questions for each message; holds them back while `gate` is shut."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def __call__(self, line: Line) -> None:
        while (question := line.read()) is not None:
            with self._lock:
                self.asked[question.json["message_id"]] += 1
            self.gate.wait(30)
            line.write(reply(question))


def test_a_killed_checkers_questions_are_asked_again_when_its_lease_has_passed(
    database: str, groups: Groups
) -> None:
    counting = Counting()
    counting.gate.clear()
    with Peer(counting) as peer:
        groups.register("shop", {"kind": "http", "url": peer.url()})
        halves = groups.prepare("shop", 20)
        with CheckerProcess(database, ports=(peer.port,)) as first:
            wait_until(lambda: counting.asked, "it is asking")
            first.process.kill()
            assert first.wait() == -9
        counting.gate.set()
        with CheckerProcess(database, ports=(peer.port,)):
            groups.wait_for("shop", {"COMMITTED": 20})
        for half in halves:
            decisions = [event for event in groups.events(half) if event[2] == "COMMITTED"]
            assert len(decisions) == 1
            # What was asked and never settled used up no check.
            assert decisions[0][4] == "check 1 answered COMMIT"


def test_on_sigterm_what_was_asked_is_settled_and_nothing_more_is_asked(
    database: str, groups: Groups
) -> None:
    def claimed() -> int:
        row = groups.conn.execute(
            "SELECT count(*) FROM outbox.pending_check WHERE asked_by IS NOT NULL"
        ).fetchone()
        assert row is not None
        return int(row[0])

    counting = Counting()
    with Peer(counting) as peer:
        groups.register("shop", {"kind": "http", "url": peer.url()}, check_timeout="20 s")
        with CheckerProcess(database, "--shutdown-timeout", "25", ports=(peer.port,)) as checker:
            # After quick answers a claim takes more than its four workers can ask about at once.
            groups.prepare("shop", 4)
            groups.wait_for("shop", {"COMMITTED": 4})
            counting.gate.clear()
            groups.prepare("shop", 50)
            wait_until(lambda: len(counting.asked) == 8 and claimed() > 4, "four are asked, others queue")
            checker.terminate()
            # An answer that came before the checker noticed the signal would make room for another claim.
            checker.wait_for("stopping")
            wait_until(lambda: claimed() == 4, "what was not begun is given back")
            counting.gate.set()
            assert checker.wait() == 0
        assert checker.find("stopped", left_to_their_lease=0)
        assert groups.states("shop") == {"COMMITTED": 8, "UNKNOWN": 46}
        assert groups.checks("shop") == 0
        assert len(counting.asked) == 8


def test_sigterm_does_not_wait_for_a_callback_that_hangs(database: str, groups: Groups) -> None:
    counting = Counting()
    counting.gate.clear()
    with Peer(counting) as peer:
        groups.register("shop", {"kind": "http", "url": peer.url()}, check_timeout="20 s")
        groups.prepare("shop")
        with CheckerProcess(database, "--shutdown-timeout", "0.2", ports=(peer.port,)) as checker:
            wait_until(lambda: counting.asked, "it is asking")
            checker.terminate()
            assert checker.wait(15) == 0
        assert checker.find("stopped", left_to_their_lease=1)
        counting.gate.set()


def test_two_checkers_share_the_work_and_ask_about_each_message_once(database: str, groups: Groups) -> None:
    counting = Counting()
    with Peer(counting) as peer:
        groups.register("shop", {"kind": "http", "url": peer.url()})
        with (
            CheckerProcess(database, ports=(peer.port,)) as one,
            CheckerProcess(database, ports=(peer.port,)) as two,
        ):
            one.wait_until_running()
            two.wait_until_running()
            halves = [half for _ in range(10) for half in groups.prepare("shop", 100)]
            groups.wait_for("shop", {"COMMITTED": 1000})
        assert set(counting.asked.values()) == {1}
        assert len(counting.asked) == len(halves)


def test_it_starts_before_postgres_and_outlives_its_restarts(
    private_stack: Stack, private_database: str
) -> None:
    private_stack.kill_postgres()
    with Peer(answering()) as peer, CheckerProcess(private_database, ports=(peer.port,)) as checker:
        checker.wait_for("PostgreSQL is away")
        for round_number in range(2):
            private_stack.start_postgres()
            groups = Groups(private_database)
            groups.register("shop", {"kind": "http", "url": peer.url()})
            groups.prepare("shop", 5)
            groups.wait_for("shop", {"COMMITTED": 5 * (round_number + 1)})
            groups.close()
            private_stack.kill_postgres()
        private_stack.start_postgres()
        checker.terminate()
        assert checker.wait() == 0


def test_a_database_without_the_schema_is_refused(make_database: object) -> None:
    empty = make_database(migrated=False)  # type: ignore[operator]  # a fixture's callable
    with CheckerProcess(empty) as checker:
        assert checker.wait() == 1
    assert "run: outbox db upgrade" in checker.output()
