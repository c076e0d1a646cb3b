"""The plan of a decision: one round trip when all is well, a second to learn who was first, and no endless third."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from outbox import Decision, HalfMessage, Message, Receipt
from outbox.checking import MessageView
from outbox.durations import interval, text_of
from outbox.errors import ExhaustedError, NotDelayedError, OutboxError
from outbox.operations.cancel import cancel
from outbox.operations.decide import DecidedState, decide, join
from outbox.operations.prepare import prepare
from outbox.operations.ranges import within_range
from outbox.operations.rows import load_rows
from outbox.operations.send import send
from outbox.operations.sender import Sender
from outbox.statements import Plan, Rows, load

OURS = UUID("00000000-0007-8abc-8000-000000000001")
FOREIGN = UUID("4bf92f35-77b3-4da6-a3ce-929d0e0e4736")
SQL = {text: name for file in ("cancel.sql", "prepare.sql", "send.sql", "groups.sql")
       for name, text in load_rows(file).items()}  # fmt: skip
SQL |= {within_range(text, "7"): name for name, text in load("decide.sql").items()}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT = int(NOON.timestamp()) * 1_000_000
DECIDED: Rows = [("COMMITTED", "me", AT, None)]


def run(plan: Plan[Any], *answers: Rows) -> tuple[Any, list[tuple[str, Any]]]:
    """Run a plan against these answers; its result, and the statements by name with their first value."""
    asked = []
    pending = iter(answers)
    try:
        statement = next(plan)
        while True:
            asked.append((SQL[statement.text], statement.params[0] if statement.params else None))
            statement = plan.send(next(pending))
    except StopIteration as done:
        return done.value, asked


@pytest.mark.parametrize("ordered", [False, True])
def test_decision_takes_one_round_trip_and_ordered_one_more(*, ordered: bool) -> None:
    answers: list[Rows] = [[(True, "")]] * ordered + [DECIDED]
    decision, asked = run(decide(OURS, DecidedState.COMMITTED, None, ordered=ordered), *answers)
    assert decision == Decision("COMMITTED", "me", NOON)
    assert asked == [("lock_order_key_of", "7")] * ordered + [("decide", "7")]


def test_decision_that_was_made_takes_two_round_trips() -> None:
    decision, asked = run(
        decide(OURS, DecidedState.COMMITTED, None), [], [("COMMITTED", "COMMITTED", "other", AT, "why")]
    )
    assert decision == Decision("COMMITTED", "other", NOON, "why", repeated=True)
    assert [name for name, _ in asked] == ["decide", "read_decision"]


def test_half_message_that_appears_between_the_statements_is_decided() -> None:
    _, asked = run(
        decide(OURS, DecidedState.COMMITTED, None), [], [("UNKNOWN", None, None, None, None)], DECIDED
    )
    assert [name for name, _ in asked] == ["decide", "read_decision", "decide"]
    _, asked = run(join(OURS), [], [("UNKNOWN", None, None, None, None)], [(7,)])
    assert [name for name, _ in asked] == ["join", "read_decision", "join"]


@pytest.mark.parametrize("plan", [decide(OURS, DecidedState.COMMITTED, None), join(OURS)])
def test_row_that_cannot_be_updated_ends_in_an_error(plan: Plan[Any]) -> None:
    undecided: Rows = [("UNKNOWN", None, None, None, None)]
    with pytest.raises(OutboxError, match="is UNKNOWN and takes no decision: a trigger or a policy"):
        run(plan, [], undecided, [], undecided, [], undecided)


@pytest.mark.parametrize(
    "half",
    [
        HalfMessage(7, FOREIGN, "t"),
        Receipt(7, FOREIGN, "t", None),
        MessageView(7, FOREIGN, "t", "orders", NOON),
        OURS,
        str(OURS),
        OURS.hex,
    ],
)
def test_row_is_known_without_asking(half: Any) -> None:
    assert run(join(half), [(7,)])[1] == [("join", "7")]


def test_id_made_elsewhere_is_looked_up() -> None:
    assert run(join(FOREIGN), [(7,)], [(7,)])[1] == [("find_foreign", str(FOREIGN)), ("join", "7")]


def test_exhausted_message_says_how_an_operator_decides_what_was_wanted() -> None:
    exhausted: Rows = [("EXHAUSTED", "EXHAUSTED", "checker:orders@h:1 (u)", AT, "15 checks")]
    with pytest.raises(ExhaustedError, match=f"outbox tx rollback {OURS} --reason"):
        run(decide(OURS, DecidedState.ROLLED_BACK, None), [], exhausted)


def test_cancelling_takes_one_round_trip_before_its_time() -> None:
    cancelled: Rows = [("CANCELLED", "me", AT, "why")]
    decision, asked = run(cancel(OURS, "why"), cancelled)
    assert decision == Decision("CANCELLED", "me", NOON, "why")
    assert asked == [("cancel", "7")]


def test_driver_errors_pass_through_a_cancellation_unchanged() -> None:
    plan = cancel(OURS, None)
    next(plan)
    plan.send([])
    assert SQL[plan.send([("COMMITTED", AT, True, None, None, None)]).text] == "savepoint"
    assert SQL[plan.send([]).text] == "cancel_overdue"
    error = RuntimeError("connection lost")
    with pytest.raises(RuntimeError) as caught:
        plan.throw(error)
    assert caught.value is error


def test_message_that_was_cancelled_between_the_statements_counts_as_cancelled() -> None:
    due: Rows = [("COMMITTED", AT, True, None, None, None)]
    gone: Rows = [("CANCELLED", AT, True, "other", AT, "theirs")]
    decision, asked = run(cancel(OURS, None), [], due, [], [], [], gone)
    assert decision == Decision("CANCELLED", "other", NOON, "theirs", repeated=True)
    assert [name for name, _ in asked][2:] == ["savepoint", "cancel_overdue", "release", "read_cancelled"]
    with pytest.raises(OutboxError, match="cannot be updated"):
        run(cancel(OURS, None), [], due, [], [], [], due)
    with pytest.raises(NotDelayedError, match="EXHAUSTED"):
        run(cancel(OURS, None), [], [("EXHAUSTED", AT, True, "other", AT, None)])


@pytest.mark.feature("S-13")
def test_half_message_costs_one_round_trip_once_the_registry_is_known() -> None:
    sender = Sender(producer_group="orders")
    message = Message("payments", key="p-7")
    assert [name for name, _ in run(prepare(sender, message), [], [(7, OURS)])[1]] == [
        "read_registry",
        "prepare",
    ]
    half, asked = run(prepare(sender, message), [(7, OURS)])
    assert half == HalfMessage(7, OURS, "payments")
    assert [name for name, _ in asked] == ["prepare"]


def test_group_is_read_along_with_the_first_topic_and_not_per_send() -> None:
    sender = Sender(producer_group="orders")

    def plan() -> Plan[Receipt]:
        return send(sender, Message("payments"), ordered=False, idempotency_key=None)

    assert [name for name, _ in run(plan(), [], [(7, OURS)])[1]] == ["read_registry", "send"]
    assert [name for name, _ in run(plan(), [(7, OURS)])[1]] == ["send"]


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (None, None),
        (0, "0 microseconds"),
        (1.5, "1500000 microseconds"),
        (timedelta(days=1, microseconds=1), "86400000001 microseconds"),
    ],
)
def test_span_keeps_its_microseconds(span: Any, text: str | None) -> None:
    assert text_of(interval("span", span, OutboxError)) == text
