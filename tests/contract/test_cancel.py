"""`cancel`: a delayed message is withdrawn before its delivery, or it is too late; exactly one of the two."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from outbox import Message, Receipt
from outbox.errors import DecidedOtherwiseError, NotDelayedError, TooLateError
from outbox.statements import Statements
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import WAIT, Session, is_blocked, wait_until

LATER = datetime(2090, 1, 1, tzinfo=UTC)
SINCE = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def relay(make_session: MakeSession) -> Session:
    """A connection that releases due messages by the relay's own statement."""
    return make_session()


@pytest.fixture
def receipt(session: Session) -> Receipt:
    """A message that waits for years."""
    sent = session.send(Message("reminders", key="k", deliver_at=LATER))
    session.commit()
    return sent


def release(relay: Session) -> None:
    statement = (
        Statements("outbox_relay/publisher/upkeep.sql")["release"]
        .replace("%(since)s", "%s")
        .replace("%(lanes)s", "'{0,1,2,3,4,5,6,7}'")
    )
    relay.execute(statement, [SINCE])


def fall_due(observer: Session, receipt: Receipt) -> None:
    """Let the time of the message come."""
    observer.execute(
        """WITH moved AS (UPDATE outbox.message SET deliver_at = clock_timestamp() - interval '1 s' WHERE id = %s)
           UPDATE outbox.waiting SET due_at = clock_timestamp() - interval '1 s' WHERE id = %s""",
        [receipt.id, receipt.id],
    )


def outcome(observer: Session) -> list[tuple[str, int]]:
    """The state of the one message, and how many wait."""
    rows: list[tuple[str, int]] = observer.execute(
        "SELECT state, (SELECT count(*) FROM outbox.waiting) FROM outbox.message"
    )
    return rows


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.feature("H-05")
def test_cancelled_message_is_never_released(
    session: Session, observer: Session, relay: Session, receipt: Receipt
) -> None:
    decision = session.cancel(receipt, remark="order withdrawn")
    assert (decision.state, decision.reason, decision.repeated) == ("CANCELLED", "order withdrawn", False)
    session.commit()
    fall_due(observer, receipt)
    release(relay)
    relay.commit()
    assert outcome(observer) == [("CANCELLED", 0)]
    events = observer.execute("SELECT from_state, to_state, reason FROM outbox.event")
    assert events == [("COMMITTED", "CANCELLED", "order withdrawn")]


def test_cancelling_twice_is_fine(session: Session, receipt: Receipt) -> None:
    first = session.cancel(receipt.message_id, remark="first")
    session.commit()
    again = session.cancel(str(receipt.message_id), remark="second")
    assert again == first._replace(repeated=True, at=again.at)
    assert abs(again.at - first.at) < timedelta(seconds=1)


def test_cancellation_is_the_transactions(session: Session, observer: Session, receipt: Receipt) -> None:
    session.cancel(receipt)
    session.rollback()
    assert outcome(observer) == [("COMMITTED", 1)]


def test_overdue_message_can_be_cancelled_until_the_relay_releases_it(
    session: Session, observer: Session, receipt: Receipt
) -> None:
    fall_due(observer, receipt)
    assert session.cancel(receipt).state == "CANCELLED"
    session.commit()
    assert outcome(observer) == [("CANCELLED", 0)]


def test_released_message_cannot_be_cancelled(
    session: Session, observer: Session, relay: Session, receipt: Receipt
) -> None:
    fall_due(observer, receipt)
    release(relay)
    relay.commit()
    session.execute("SAVEPOINT mine")
    for _ in range(2):
        with pytest.raises(TooLateError, match=f"message {receipt.message_id} was due at .* and is released"):
            session.cancel(receipt)
    # The transaction is usable, and no savepoint is left in it.
    session.execute("SELECT 1")
    with pytest.raises(psycopg.errors.InvalidSavepointSpecification):
        session.execute("RELEASE outbox_cancel")
    session.execute("ROLLBACK TO mine")
    assert outcome(session) == [("COMMITTED", 0)]


def test_message_let_go_before_its_time_is_too_late_and_the_transaction_goes_on(
    session: Session, observer: Session, relay: Session, receipt: Receipt
) -> None:
    observer.execute("UPDATE outbox.waiting SET due_at = clock_timestamp() - interval '1 s'")
    release(relay)
    relay.commit()
    with pytest.raises(TooLateError):
        session.cancel(receipt)
    session.execute("SELECT 1")
    assert outcome(observer) == [("COMMITTED", 0)]


def test_refusal_is_told_in_a_pipeline_too(
    session: Session, observer: Session, relay: Session, receipt: Receipt
) -> None:
    fall_due(observer, receipt)
    release(relay)
    relay.commit()
    with pytest.raises(TooLateError):
        session.in_pipeline(lambda: session.cancel(receipt))


def test_cancellation_that_waited_for_the_relay_is_too_late(
    session: Session, observer: Session, relay: Session, receipt: Receipt, pool: ThreadPoolExecutor
) -> None:
    fall_due(observer, receipt)
    release(relay)
    waiting = pool.submit(lambda: session.cancel(receipt))
    wait_until(lambda: waiting.done() or is_blocked(observer, session.pid), "blocked by the relay")
    assert not waiting.done()
    relay.commit()
    with pytest.raises(TooLateError):
        waiting.result(WAIT)
    assert outcome(observer) == [("COMMITTED", 0)]


def test_relay_passes_over_a_message_that_is_being_cancelled(
    session: Session, observer: Session, relay: Session, receipt: Receipt
) -> None:
    fall_due(observer, receipt)
    session.cancel(receipt)
    release(relay)
    relay.commit()
    assert outcome(observer) == [("COMMITTED", 1)]
    session.commit()
    release(relay)
    relay.commit()
    assert outcome(observer) == [("CANCELLED", 0)]


def test_message_without_a_time_is_not_delayed(session: Session) -> None:
    receipt = session.send(Message("reminders"))
    with pytest.raises(
        NotDelayedError, match=r"is COMMITTED and has no deliver_at: .*; allowed: a delayed message"
    ):
        session.cancel(receipt)


def test_undecided_half_message_is_rolled_back_instead(session: Session) -> None:
    half = session.prepare(Message("reminders", deliver_at=LATER))
    with pytest.raises(
        NotDelayedError,
        match=r"is UNKNOWN: a half message is delayed only after its commit; .* rollback\(conn, half\)",
    ):
        session.cancel(half)
    session.commit_half(half)
    assert session.cancel(half).state == "CANCELLED"
    assert session.commit_half(half).repeated
    with pytest.raises(DecidedOtherwiseError, match=r"was decided COMMITTED .*, and is CANCELLED now"):
        session.roll_back_half(half)


def test_rolled_back_half_message_is_never_delivered_anyway(session: Session) -> None:
    half = session.prepare(Message("reminders", deliver_at=LATER))
    session.roll_back_half(half, remark="changed their mind")
    with pytest.raises(
        DecidedOtherwiseError, match=r"is ROLLED_BACK since .*: it is never delivered"
    ) as caught:
        session.cancel(half)
    assert caught.value.reason == "changed their mind"


def test_dead_message_cannot_be_cancelled(session: Session, receipt: Receipt) -> None:
    session.execute("UPDATE outbox.message SET state = 'DEAD'")
    with pytest.raises(TooLateError, match="is DEAD: the relay has dealt with it"):
        session.cancel(receipt)
