"""Blocks of `Producer.begin(conn)`: business rows and half messages are decided together."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import IsolationLevel

from outbox import Message
from outbox.errors import (
    DecidedOtherwiseError,
    UnknownMessageError,
)
from outbox.rocketmq import AmbiguousHalfMessageError
from tests.support.rocketmq_5x_applications import AsyncApp, MakeApp5x
from tests.support.rocketmq_scripts import Cut, Truth

T = TypeVar("T")
MESSAGE = Message("orders:created", key="o-7", body=b"seven")
MOST_STEPS = 30


@pytest.mark.feature("S-73")
def test_a_block_commits_rows_and_message_together(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app, seen = make_app_5x(), []

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        half = app.run(transaction.send(MESSAGE))
        assert half.transaction_id == transaction.transaction_id
        seen.append((truth.states(), truth.lockable(), truth.rows()))

    app.block(work)
    assert seen == [(["UNKNOWN"], 0, [])]
    assert (truth.states(), truth.lockable(), truth.rows()) == (["COMMITTED"], 1, ["row"])
    assert app.producer.counts["committed_total"] == 1


@pytest.mark.feature("S-73")
def test_an_exception_in_a_block_rolls_rows_back_and_leaves_the_message_to_a_check(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        app.run(transaction.send(MESSAGE))
        raise ValueError("card declined, or was it")

    with pytest.raises(ValueError, match="card declined"):
        app.block(work)
    message = truth.conn.execute("SELECT state, remark FROM outbox.message").fetchone()
    assert message == ("UNKNOWN", "local transaction exception: ValueError: card declined, or was it")
    assert (truth.rows(), truth.lockable()) == ([], 1)
    assert app.producer.counts["unknown_total"] == 1


@pytest.mark.parametrize("by", ["rollback", "psycopg.Rollback"])
def test_an_explicit_rollback_in_a_block_withdraws_rows_and_message(
    make_app_5x: MakeApp5x, truth: Truth, by: str
) -> None:
    app = make_app_5x()

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        app.run(transaction.send(MESSAGE))
        if by != "rollback":
            raise psycopg.Rollback
        transaction.rollback("sold out")

    app.block(work)
    remark = "sold out" if by == "rollback" else "the transaction was rolled back"
    message = truth.conn.execute("SELECT state, remark FROM outbox.message").fetchone()
    assert message == ("ROLLED_BACK", remark)
    assert truth.rows() == []


def test_a_block_without_message_is_a_plain_transaction(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x()
    app.block(lambda transaction: app.execute("INSERT INTO business VALUES ('kept')"))

    def fail(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('lost')")
        raise LookupError

    with pytest.raises(LookupError):
        app.block(fail)
    assert (truth.rows(), truth.states()) == (["kept"], [])


def test_a_block_inside_a_transaction_is_decided_with_it(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x()
    app.execute("INSERT INTO business VALUES ('outer')")
    app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    assert truth.states() == ["UNKNOWN"]
    app.commit()
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["outer"])


def test_a_block_whose_message_was_rolled_back_commits_nothing(make_app_5x: MakeApp5x, truth: Truth) -> None:
    """As when the server lost the lock with its connection; here the block is not even locked."""
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    truth.decide("ROLLED_BACK", "nothing was found")
    app.execute("INSERT INTO business VALUES ('row')")
    with pytest.raises(DecidedOtherwiseError, match="nothing was found"):
        app.run(transaction.commit(app.conn))
    app.rollback()
    with pytest.raises(DecidedOtherwiseError, match="nothing was found"):
        app.run(transaction.join(app.conn))
    app.rollback()
    assert (truth.states(), truth.rows()) == (["ROLLED_BACK"], [])


def test_an_old_snapshot_that_cannot_see_the_half_message_is_explained(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()
    if isinstance(app, AsyncApp):
        app.run(app.conn.set_isolation_level(IsolationLevel.REPEATABLE_READ))
    else:
        app.conn.isolation_level = IsolationLevel.REPEATABLE_READ

    def late(transaction: Any) -> None:
        app.execute("SELECT FROM business")
        app.run(transaction.send(MESSAGE))

    with pytest.raises(UnknownMessageError) as caught:
        app.block(late)
    assert "send before the block's first statement" in caught.value.__notes__[0]
    app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    assert truth.states() == ["UNKNOWN", "COMMITTED"]


@pytest.mark.feature("S-73")
@pytest.mark.parametrize("whose", ["producer", "business"])
def test_a_connection_killed_in_any_step_of_a_block_never_parts_message_and_rows(
    make_app_5x: MakeApp5x, truth: Truth, database: str, whose: str
) -> None:
    app = make_app_5x()
    io, struck = app.producer._io, []
    for at in range(MOST_STEPS):
        truth.conn.execute("TRUNCATE business")
        truth.decide("ROLLED_BACK", "of an earlier round")
        before = len(truth.states())
        business = app.conn.info.backend_pid

        def strike(conn: Any, business: int = business) -> None:
            truth.kill(business if whose == "business" else conn.info.backend_pid)

        app.producer._io = cut = Cut(io, at, before=strike)

        def work(transaction: Any) -> None:
            app.run(transaction.send(MESSAGE))
            app.execute("INSERT INTO business VALUES ('row')")

        ended = False
        with suppress(psycopg.OperationalError, AmbiguousHalfMessageError):
            app.block(work)
            ended = True
        app.producer._io = io
        if cut.struck is None and at > 0:
            break
        struck.append(cut.struck)
        if app.conn.closed:
            app.conn = app.run(app.connect(database))
        rows, states = truth.rows(), truth.states()[before:]
        assert truth.lockable() == len(truth.states()), "a lock was left"
        assert (rows == ["row"]) == (states == ["COMMITTED"]), f"step {at} parted {rows} and {states}"
        assert ended == (rows == ["row"]), f"step {at}: ended {ended} with {states}"
        assert states in ([], ["UNKNOWN"], ["ROLLED_BACK"], ["COMMITTED"])
    assert {"begin", "run", "commit"} <= set(struck)
