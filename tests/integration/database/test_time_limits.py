"""The library and the table draw one limit for `deliver_at` and `deliver_before`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox import Message, Outbox
from outbox.errors import InvalidMessageError
from outbox.message import EARLIEST, LATEST
from tests.support.plain_inserts import Connection

STEP = timedelta(microseconds=1)
BOUNDS = [
    datetime.min.replace(tzinfo=UTC),
    EARLIEST + STEP,
    LATEST - STEP,
    LATEST,
    LATEST + STEP,
    LATEST + timedelta(hours=12),
    datetime.max.replace(tzinfo=UTC),
]


def table_takes(conn: Connection, column: str, text: str) -> bool:
    """Whether a row with this time can be inserted."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"INSERT INTO outbox.message (topic, {column}) VALUES ('t', %s)", [text])
    except psycopg.errors.CheckViolation:
        return False
    return True


def library_takes(column: str, moment: datetime) -> bool:
    """Whether a message with this time can be made."""
    try:
        Message("t", **{column: moment})  # type: ignore[arg-type]
    except InvalidMessageError:
        return False
    return True


@pytest.mark.parametrize("column", ["deliver_at", "deliver_before"])
def test_both_take_and_refuse_the_same_times(conn: Connection, column: str) -> None:
    verdicts = []
    for moment in BOUNDS:
        taken = library_takes(column, moment)
        assert taken == table_takes(conn, column, moment.isoformat()), moment
        verdicts.append(taken)
    with pytest.raises(InvalidMessageError, match="allowed: 0001-01-01 to 9999-12-31 00:00 UTC, or None"):
        Message("t", **{column: BOUNDS[-1]})  # type: ignore[arg-type]
    assert verdicts == [True, True, True, True, False, False, False]


@pytest.mark.parametrize("column", ["deliver_at", "deliver_before"])
def test_any_time_near_a_limit_in_any_zone(conn: Connection, column: str) -> None:
    zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
    near = st.one_of(
        st.datetimes(max_value=datetime(1, 1, 3)), st.datetimes(min_value=datetime(9999, 12, 29))
    )

    @settings(max_examples=60)
    @given(near, zones)
    def compare(naive: datetime, zone: timezone) -> None:
        moment = naive.replace(tzinfo=zone)
        # PostgreSQL reads years before 1 with BC; isoformat() of such a moment has year 1 and its own offset.
        assert library_takes(column, moment) == table_takes(conn, column, moment.isoformat())

    compare()


def test_what_the_library_takes_is_sent(database: str) -> None:
    with psycopg.connect(database) as conn:
        Outbox().send(conn, Message("t", deliver_at=LATEST - STEP, deliver_before=LATEST))
        assert conn.execute("SELECT deliver_at, deliver_before FROM outbox.message").fetchall() == [
            (LATEST - STEP, LATEST)
        ]
