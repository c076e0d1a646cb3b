"""`commit` and `rollback`: a half message is decided once, and who comes second is told by whom, when and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from outbox import Decision, HalfMessage, Message
from outbox.errors import (
    ConfigurationError,
    DecidedOtherwiseError,
    ExhaustedError,
    NotAHalfMessageError,
    NoTransactionError,
    UnknownMessageError,
)
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session
from tests.support.stopped_lanes import ERROR, STOP

PAYMENT = Message("payments", key="p-7", body="charged")
NOBODY = UUID("00000000-0001-8000-8000-000000000000")


def state(session: Session, half: HalfMessage) -> Any:
    return session.execute("SELECT state FROM outbox.message WHERE id = %s", [half.id])[0][0]


def user(session: Session) -> str:
    name: str = session.execute("SELECT session_user::text")[0][0]
    return name


def become(session: Session, half: HalfMessage, *states: str) -> None:
    """Move the row on as others do: checkers, operators, the relay."""
    for before, each in zip((None, *states), states, strict=False):
        if before == "COMMITTED":
            session.execute(STOP, [ERROR, each == "SKIPPED", half.id])
        session.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [each, half.id])


@pytest.fixture
def half(session: Session) -> HalfMessage:
    """A half message whose transaction has committed."""
    prepared = session.prepare(PAYMENT)
    session.commit()
    return prepared


@pytest.mark.feature("S-13")
def test_commit_takes_a_new_place_and_is_noted(session: Session, half: HalfMessage) -> None:
    later = session.send(PAYMENT)
    decision = session.commit_half(half, remark="charged")
    assert (decision.state, decision.by, decision.reason) == ("COMMITTED", user(session), "charged")
    assert not decision.repeated
    found = session.execute(
        """SELECT state, remark, xid = pg_current_xact_id(), position > %s, decided_at = %s
           FROM outbox.message WHERE id = %s""",
        [later.id, decision.at, half.id],
    )
    assert found == [("COMMITTED", "charged", True, True, True)]
    events = session.execute(
        "SELECT from_state, to_state, actor, reason FROM outbox.event WHERE message_id = %s ORDER BY happened_at",
        [half.message_id],
    )
    assert events[1:] == [("UNKNOWN", "COMMITTED", user(session), "charged")]


@pytest.mark.feature("S-14")
def test_rollback_leaves_the_row_as_a_fence(session: Session, half: HalfMessage) -> None:
    assert session.roll_back_half(half).state == "ROLLED_BACK"
    session.commit()
    with pytest.raises(DecidedOtherwiseError):
        session.commit_half(half)
    assert state(session, half) == "ROLLED_BACK"


@pytest.mark.feature("S-13")
def test_decision_is_the_transactions(session: Session, observer: Session, half: HalfMessage) -> None:
    session.commit_half(half)
    assert state(observer, half) == "UNKNOWN"
    session.rollback()
    assert session.roll_back_half(half).state == "ROLLED_BACK"


def test_half_message_may_be_decided_in_its_own_transaction(session: Session) -> None:
    half = session.prepare(PAYMENT)
    session.commit_half(half)
    session.commit()
    assert state(session, half) == "COMMITTED"


@pytest.mark.parametrize("verdict", ["commit_half", "roll_back_half"])
def test_same_verdict_again_answers_with_the_first(session: Session, half: HalfMessage, verdict: str) -> None:
    first: Decision = getattr(session, verdict)(half, remark="first")
    session.commit()
    again: Decision = getattr(session, verdict)(half, remark="second")
    assert again == first._replace(repeated=True, at=again.at)
    assert abs(again.at - first.at) < timedelta(seconds=1)
    events = session.execute("SELECT count(*) FROM outbox.event WHERE message_id = %s", [half.message_id])
    assert events == [(2,)]


@pytest.mark.feature("S-14")
def test_commit_after_a_rollback_raises_and_takes_the_business_row_with_it(
    session: Session, observer: Session, half: HalfMessage
) -> None:
    session.execute("CREATE TABLE payment (id text)")
    session.commit()
    observer.execute("BEGIN")
    observer.execute("SELECT set_config('outbox.actor', 'checker:orders@host:7', true)")
    observer.roll_back_half(half, remark="card declined")
    observer.execute("COMMIT")

    def business() -> None:
        session.execute("INSERT INTO payment VALUES ('p-7')")
        session.commit_half(half)

    with pytest.raises(DecidedOtherwiseError) as caught:
        session.in_transaction(business)
    by = f"checker:orders@host:7 ({user(observer)})"
    error = caught.value
    assert (error.message_id, error.state, error.by) == (half.message_id, "ROLLED_BACK", by)
    assert error.reason == "card declined"
    assert abs(error.at - observer.execute("SELECT clock_timestamp()")[0][0]) < timedelta(minutes=1)
    at = error.at.isoformat(sep=" ")
    assert str(error) == (
        f"message {half.message_id} was decided ROLLED_BACK by {by} at {at}: card declined. It cannot become "
        "COMMITTED; roll this transaction back, so that what hangs on it is undone"
    )
    assert observer.execute("SELECT count(*) FROM payment") == [(0,)]


def test_error_leaves_the_transaction_usable(session: Session, half: HalfMessage) -> None:
    session.commit_half(half)
    with pytest.raises(
        DecidedOtherwiseError, match=r"decided COMMITTED by .*, without a remark\. It cannot become ROLLED"
    ):
        session.roll_back_half(half)
    assert state(session, half) == "COMMITTED"


@pytest.mark.parametrize(
    ("states", "now"),
    [
        (("COMMITTED", "DEAD"), "DEAD"),
        (("COMMITTED", "DEAD", "SKIPPED"), "SKIPPED"),
        (("COMMITTED", "SKIPPED"), "SKIPPED"),
    ],
)
def test_what_became_of_a_committed_message_does_not_change_its_decision(
    session: Session, half: HalfMessage, states: tuple[str, ...], now: str
) -> None:
    become(session, half, *states)
    decision = session.commit_half(half)
    assert (decision.state, decision.repeated) == ("COMMITTED", True)
    with pytest.raises(DecidedOtherwiseError, match=f"was decided COMMITTED .*, and is {now} now"):
        session.roll_back_half(half)


@pytest.mark.parametrize(
    ("verdict", "command"), [("commit_half", "commit"), ("roll_back_half", "rollback"), ("join", "commit")]
)
def test_exhausted_half_message_is_left_to_an_operator(
    session: Session, half: HalfMessage, verdict: str, command: str
) -> None:
    session.execute(
        "UPDATE outbox.message SET state = 'EXHAUSTED', remark = '15 checks' WHERE id = %s", [half.id]
    )
    with pytest.raises(
        ExhaustedError, match=f"15 checks.* outbox tx {command} {half.message_id} --reason"
    ) as caught:
        getattr(session, verdict)(half)
    assert (caught.value.state, caught.value.reason) == ("EXHAUSTED", "15 checks")
    assert state(session, half) == "EXHAUSTED"


@pytest.mark.parametrize(
    ("decided", "refused"), [("COMMITTED", "roll_back_half"), ("ROLLED_BACK", "commit_half")]
)
def test_operators_decision_is_the_decision(
    session: Session, half: HalfMessage, decided: str, refused: str
) -> None:
    become(session, half, "EXHAUSTED", decided)
    with pytest.raises(DecidedOtherwiseError, match=f"was decided {decided} by ") as caught:
        getattr(session, refused)(half)
    assert not isinstance(caught.value, ExhaustedError)


# Which message ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named", [lambda half: half, lambda half: half.message_id, lambda half: str(half.message_id)]
)
@pytest.mark.parametrize("own_id", [None, uuid4()], ids=["our id", "own id"])
def test_half_message_is_known_by_any_of_its_names(session: Session, own_id: UUID | None, named: Any) -> None:
    half = session.prepare(Message("payments", message_id=own_id))
    session.commit()
    session.join(named(half))
    assert session.commit_half(named(half)).state == "COMMITTED"
    assert session.commit_half(named(half)).repeated


@pytest.mark.parametrize("verb", ["commit_half", "roll_back_half", "join", "cancel"])
@pytest.mark.parametrize(
    "half", [NOBODY, uuid4(), HalfMessage(1, NOBODY, "payments")], ids=["ours", "foreign", "half"]
)
def test_unknown_message_is_told(session: Session, verb: str, half: Any) -> None:
    with pytest.raises(UnknownMessageError, match=r"no message [0-9a-f-]{36} is visible to this transaction"):
        getattr(session, verb)(half)


def test_row_with_the_same_id_and_another_message_id_is_left_alone(
    session: Session, half: HalfMessage
) -> None:
    with pytest.raises(UnknownMessageError):
        session.commit_half(half._replace(message_id=uuid4()))
    assert state(session, half) == "UNKNOWN"


def test_message_that_was_sent_is_no_half_message(session: Session) -> None:
    receipt = session.send(Message("payments", deliver_at=datetime(2090, 1, 1, tzinfo=UTC)))
    for verb in (session.commit_half, session.roll_back_half, session.join):
        with pytest.raises(NotAHalfMessageError, match="is COMMITTED and never was a half message"):
            verb(receipt)
    session.cancel(receipt)
    with pytest.raises(NotAHalfMessageError, match="is CANCELLED and never"):
        session.commit_half(receipt.message_id)


def test_own_id_that_several_messages_have_is_ambiguous(session: Session) -> None:
    """The table refuses the second one, unless two transactions write it at the same moment."""
    own = uuid4()
    session.execute("ALTER TABLE outbox.message DISABLE TRIGGER message_admission")
    halves = [session.prepare(Message("payments", message_id=own)) for _ in range(2)]
    session.execute("ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_admission")
    with pytest.raises(
        ConfigurationError, match=f"half: several messages have the id {own}; allowed: what prepare"
    ):
        session.commit_half(own)
    session.commit_half(halves[0])
    assert [state(session, half) for half in halves] == ["COMMITTED", "UNKNOWN"]


@pytest.mark.parametrize("half", ["p-7", ""])
@pytest.mark.parametrize("verb", ["commit_half", "roll_back_half", "join", "cancel"])
def test_text_that_is_not_a_message_id_names_no_message(session: Session, verb: str, half: str) -> None:
    with pytest.raises(UnknownMessageError, match=f"{half!r} is not a message id; expected what prepare"):
        getattr(session, verb)(half)


@pytest.mark.parametrize("half", [7, None, b"x", ("a", 1)])
@pytest.mark.parametrize("verb", ["commit_half", "roll_back_half", "join", "cancel"])
def test_what_is_no_message_is_refused(session: Session, verb: str, half: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match="does not identify a message; allowed: HalfMessage, Receipt, MessageView, UUID",
    ):
        getattr(session, verb)(half)


@pytest.mark.parametrize("verb", ["commit_half", "roll_back_half", "cancel"])
def test_remark_is_text(session: Session, half: HalfMessage, verb: str) -> None:
    with pytest.raises(ConfigurationError, match="remark: is int; allowed: str or None"):
        getattr(session, verb)(half, remark=7)


def test_long_remark_is_cut(session: Session, half: HalfMessage) -> None:
    decision = session.commit_half(half, remark="被拒\0" * 400)
    assert decision.reason is not None
    assert len(decision.reason) == 500
    assert "\0" not in decision.reason


def test_decision_needs_a_transaction(make_session: MakeSession, session: Session, half: HalfMessage) -> None:
    alone = make_session(connect={"autocommit": True})
    for verb in (alone.commit_half, alone.roll_back_half, alone.join, alone.cancel):
        with pytest.raises(NoTransactionError):
            verb(half)
    assert state(session, half) == "UNKNOWN"


def test_decisions_work_in_a_pipeline(session: Session, half: HalfMessage) -> None:
    assert session.in_pipeline(lambda: session.commit_half(half)).state == "COMMITTED"
    with pytest.raises(DecidedOtherwiseError):
        session.in_pipeline(lambda: session.roll_back_half(half))
