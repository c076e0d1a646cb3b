"""RocketMQ 4.x's model when connections are lost, and when others decide."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest

from outbox import Message
from outbox.errors import DecidedOtherwiseError
from outbox.rocketmq import LocalTransactionState, SendStatus, TransactionSendResult
from tests.support.rocketmq_scripts import App, AsyncApp, Cut, MakeApp, Truth

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message("orders:created", key="o-7", body=b"seven")
MOST_STEPS = 40


def try_to_send(app: App | AsyncApp) -> TransactionSendResult | None:
    """Send; None where the half message could not be stored."""
    try:
        return app.send(MESSAGE)
    except psycopg.OperationalError:
        return None


@pytest.mark.feature("S-12", "S-18", "S-20")
@pytest.mark.parametrize("answer", [True, False, None, ValueError("no")])
def test_a_connection_killed_before_any_step_never_parts_message_and_rows(
    make_app: MakeApp, truth: Truth, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(answer=answer)
    io, struck = app.producer._io, []
    for at in range(MOST_STEPS):
        truth.conn.execute("TRUNCATE business")
        truth.decide("ROLLED_BACK", "of an earlier round")
        before, calls = len(truth.states()), len(app.listener.calls)
        cut = Cut(io, at, before=lambda conn: truth.kill(conn.info.backend_pid))
        app.producer._io = cut
        result = try_to_send(app)
        app.producer._io = io
        if cut.struck is None and at > 0:
            break
        struck.append(cut.struck)
        ran, rows, states = len(app.listener.calls) - calls, truth.rows(), truth.states()[before:]
        assert truth.lockable() == len(truth.states()), "a lock was left"
        assert len(states) <= 1
        if result is None:
            assert (ran, rows, states) == (0, [], []), f"step {at}: half a send after an error"
        elif result.local_transaction_state is COMMIT:
            assert (rows, states) == (["row"], ["COMMITTED"]), f"step {at}"
        elif result.local_transaction_state is ROLLBACK:
            assert rows == [], f"step {at}"
            assert states in ([], ["ROLLED_BACK"]), f"step {at}"
            assert (ran == 1) == (answer is False and result.send_status is SendStatus.SEND_OK and ran == 1)
        else:
            assert (ran, states) == (1, ["UNKNOWN"]), f"step {at}"
            assert rows in ([], ["row"]) if answer is None else rows == [], f"step {at}"
            assert truth.message(result.msg_id) == ("UNKNOWN", result.remark), f"step {at}"
    assert {"begin", "run", "commit", "call"} <= set(struck)


@pytest.mark.feature("S-18")
def test_a_half_message_in_doubt_runs_nothing_and_is_rolled_back(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 3, lose=True)
    result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.send_status is SendStatus.FLUSH_DISK_TIMEOUT
    assert result.local_transaction_state is ROLLBACK
    assert "local transaction not run; half message rolled back" in (result.remark or "")
    assert app.listener.calls == []
    assert truth.states() == ["ROLLED_BACK"]
    assert app.producer.counts["ambiguous_total"] == 1


@pytest.mark.feature("S-18")
def test_a_half_message_that_never_arrived_runs_nothing(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 3, before=lambda conn: truth.kill(conn.info.backend_pid))
    result = app.send(MESSAGE)
    assert result.send_status is SendStatus.FLUSH_DISK_TIMEOUT
    assert result.local_transaction_state is ROLLBACK
    assert "not rolled back (UnknownMessageError" in (result.remark or "")
    assert (app.listener.calls, truth.states()) == ([], [])


def test_a_decision_whose_answer_was_lost_is_looked_up(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 8, lose=True)
    result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.local_transaction_state is COMMIT
    assert "found decided after a lost COMMIT" in (result.remark or "")
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["row"])


@pytest.mark.feature("S-21")
def test_a_decision_that_failed_is_warned_of_counted_and_left_to_the_check(
    make_app: MakeApp, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 8, before=lambda conn: truth.kill(conn.info.backend_pid))
    with caplog.at_level(logging.WARNING, "outbox.rocketmq"):
        result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.local_transaction_state is UNKNOWN
    assert "local transaction execute COMMIT, but end transaction failed" in (result.remark or "")
    assert "but end transaction failed" in caplog.text
    assert app.producer.counts["confirm_failed_total"] == 1
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == []


def test_rows_that_the_database_refuses_at_commit_leave_the_message_to_the_check(
    make_app: MakeApp, truth: Truth
) -> None:
    truth.conn.execute("ALTER TABLE business ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    app = make_app()
    assert app.send(MESSAGE).local_transaction_state is COMMIT
    result = app.send(MESSAGE)
    assert result.local_transaction_state is UNKNOWN
    assert "UniqueViolation" in (result.remark or "")
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == ["row"]


def test_a_check_that_came_before_the_local_transaction_is_obeyed(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(
        app.producer._io, 4, before=lambda conn: truth.decide("ROLLED_BACK", "nothing was found")
    )
    result = app.send(MESSAGE)
    assert result.local_transaction_state is ROLLBACK
    assert "nothing was found" in (result.remark or "")
    assert (app.listener.calls, truth.states(), truth.rows()) == ([], ["ROLLED_BACK"], [])


def test_an_operators_commit_before_the_local_transaction_is_told(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 4, before=lambda conn: truth.decide("COMMITTED", "by hand"))
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        app.send(MESSAGE)
    assert (app.listener.calls, truth.states(), truth.rows()) == ([], ["COMMITTED"], [])


def test_a_commit_between_the_rollback_of_rows_and_message_is_told(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(answer=False)
    app.producer._io = Cut(app.producer._io, 8, before=lambda conn: truth.decide("COMMITTED", "by hand"))
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        app.send(MESSAGE)
    assert (truth.states(), truth.rows()) == (["COMMITTED"], [])
    assert app.producer.counts["confirm_failed_total"] == 1


def test_a_kept_connection_that_died_is_replaced_unnoticed(make_app: MakeApp, truth: Truth) -> None:
    pids: list[int] = []
    app = make_app(then=lambda msg: pids.append(msg.connection.info.backend_pid))
    app.send(MESSAGE)
    truth.kill(pids[0])
    assert app.send(MESSAGE).local_transaction_state is COMMIT
    assert pids[0] != pids[1]
    app.send(MESSAGE)
    assert pids[1] == pids[2]
