"""What the library says to PostgreSQL, read off the wire of a real session: every statement, nothing hidden."""

from __future__ import annotations

import pytest

from outbox import Message
from tests.support.contract_sessions import Session
from tests.support.wire_trace import ready, traced

ORDER = Message("orders", key="o-1", body=b"paid")


@pytest.mark.feature("S-01")
def test_no_operation_of_the_library_prepares_a_transaction(session: Session) -> None:
    with traced(session.conn) as lines:
        session.send(ORDER, ordered=True)
        session.send_many([ORDER, ORDER])
        session.send(ORDER, idempotency_key="request-7")
        halves = [session.prepare(ORDER) for _ in range(2)]
        session.commit()
        session.join(halves[0])
        session.commit_half(halves[0])
        session.roll_back_half(halves[1])
        session.commit()
    said = "\n".join(lines)
    assert said.count('Query\t "COMMIT"') == 2, "the trace holds the statements"
    assert "PREPARE TRANSACTION" not in said.upper()
    assert "COMMIT PREPARED" not in said.upper()


@pytest.mark.feature("S-10")
def test_one_call_inside_the_callers_transaction_is_one_round_trip(session: Session) -> None:
    session.send(ORDER)
    session.commit()
    session.execute("SELECT 1")  # begins the caller's transaction
    with traced(session.conn) as lines:
        session.send(ORDER)
    assert ready(lines) == 1
