"""An operator's open transaction holds the row of a lane that stops or goes on: the relay waits for nobody.

The rows are held from psql's point of view: a session of its own, an open transaction, `FOR UPDATE`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes
from tests.support.relay_session import relay_session, turn_until
from tests.support.stopped_lanes import Limited

LANE, OTHER = 5, 6
HOLD = f"SELECT FROM outbox.lane WHERE lane = {LANE} FOR UPDATE"
STATUS = "SELECT status FROM outbox.message_status WHERE message_id = %s"
SET_ASIDE = "UPDATE outbox.message SET state = 'DEAD', remark = 'by hand' WHERE message_id = %s"


@pytest.fixture
def limited(conn: Connection, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> Limited:
    return Limited(conn, bootstrap_servers, monkeypatch)


def lane_row(conn: Connection) -> tuple[bool, bool]:
    """Whether the lane's row says that it is stopped, and that it is being retried."""
    row = conn.execute(
        "SELECT stopped_error IS NOT NULL, retrying_at IS NOT NULL FROM outbox.lane WHERE lane = %s", [LANE]
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def is_published(conn: Connection, *message_ids: str) -> bool:
    return all(conn.execute(STATUS, [one]).fetchone() == ("PUBLISHED",) for one in message_ids)


def flows(session: Session, conn: Connection, topic: str) -> None:
    """Insist that a message of another lane is published and recorded now."""
    (key,) = keys_of_lanes(conn, topic, OTHER)
    message_id = insert(conn, topic, key, b"other")
    turn_until(session, lambda: is_published(conn, message_id), "the other lane flows")


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap_servers, topic)]


def lane_values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [value for value in values(bootstrap_servers, topic) if value != b"other"]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


def request(conn: Connection) -> None:
    conn.execute("UPDATE outbox.lane SET retry_requested_at = clock_timestamp() WHERE lane = %s", [LANE])


def stop_behind_one(conn: Connection, topic: str, limited: Limited) -> tuple[str, str, str]:
    """Write a message that can be published, one that cannot, and one behind it, all of one lane."""
    (good,) = keys_of_lanes(conn, topic, LANE)
    with conn.transaction():
        return (
            insert(conn, topic, good, b"before"),
            insert(conn, limited.name, limited.key(LANE), b"stops", lane=LANE),
            insert(conn, topic, good, b"behind"),
        )


def stopped_in_memory(session: Session) -> Callable[[], bool]:
    return lambda: LANE in session.stopped and not session.unsettled


def test_a_stop_that_cannot_be_written_holds_up_no_other_lane_and_is_written_later(
    database: str,
    bootstrap_servers: str,
    topic: str,
    limited: Limited,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING, "outbox"),
        connect(database) as conn,
        relay_session(database, bootstrap_servers) as session,
    ):
        with holding(database, HOLD) as operator:
            before, stops, behind = stop_behind_one(conn, topic, limited)
            turn_until(session, stopped_in_memory(session), "the lane stops")
            flows(session, conn, topic)
            assert is_published(conn, before)
            assert lane_row(conn) == (False, False)
            held = logged(caplog, "lane row locked")
            assert [one["lanes"] for one in held] == [[LANE]]
            assert f"(pid {operator.info.backend_pid}, " in held[0]["held_by"][0]
            assert "pg_terminate_backend(pid)" in held[0]["repair"]
            # What its lane is not recorded as stopped at stays what it is. (The guard asks for the lane's row.)
            operator.rollback()
            with pytest.raises(CheckViolation, match=f"lane {LANE} is not stopped at it"):
                conn.execute(SET_ASIDE, [stops])
        turn_until(session, lambda: lane_row(conn) == (True, False), "the stop is written")
        limited.repair()
        request(conn)
        turn_until(session, lambda: is_published(conn, before, stops, behind), "the lane goes on")
        turn_until(session, lambda: lane_row(conn) == (False, False), "its row says so")
    assert values(bootstrap_servers, limited.name) == [b"stops"]
    assert lane_values(bootstrap_servers, topic) == [b"before", b"behind"], "nothing is doubled"


def hold_when_announced(session: Session, dsn: str) -> Callable[[], psycopg.Connection[Any]]:
    """Let an operator take the lane's row at the moment at which its retry was announced."""
    announce = session._retries.announce
    held: list[psycopg.Connection[Any]] = []

    def announce_and_hold(lane: int) -> bool:
        announced = announce(lane)
        if not held:
            held.append(psycopg.connect(dsn))
            held[0].execute(HOLD.encode())
        return announced

    session._retries.announce = announce_and_hold  # type: ignore[method-assign]
    return lambda: held[0]


@pytest.mark.parametrize("ends", ["commits", "is killed first"])
def test_a_lane_goes_on_although_its_row_cannot_say_so(
    database: str, bootstrap_servers: str, topic: str, limited: Limited, ends: str
) -> None:
    """Where the relay dies meanwhile, its successor repeats the lane from the recorded stop on, in order."""
    clean = ends == "commits"
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=clean) as session:
            _, stops, behind = stop_behind_one(conn, topic, limited)
            turn_until(session, lambda: lane_row(conn)[0], "the lane stops")
            limited.repair()
            operator = hold_when_announced(session, database)
            request(conn)
            turn_until(session, lambda: is_published(conn, stops, behind), "the lane goes on")
            flows(session, conn, topic)
            later = insert(conn, topic, keys_of_lanes(conn, topic, LANE)[0], b"later")
            turn_until(session, lambda: is_published(conn, later), "the lane flows")
            assert lane_row(conn) == (True, True)
            if clean:
                operator().rollback()
                with pytest.raises(CheckViolation, match="it is published at 0/0"):
                    conn.execute(SET_ASIDE, [stops])
                turn_until(session, lambda: lane_row(conn) == (False, False), "its row says so in the end")
        operator().close()
        conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'")
        last = insert(conn, topic, keys_of_lanes(conn, topic, LANE)[0], b"last")
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: is_published(conn, last), "the next relay goes on")
            turn_until(session, lambda: lane_row(conn) == (False, False), "the row is clean")
    found = [value for value in values(bootstrap_servers, topic) if value != b"other"]
    if clean:
        assert found == [b"before", b"behind", b"later", b"last"]
    assert list(dict.fromkeys(found)) == [b"before", b"behind", b"later", b"last"]
    assert set(values(bootstrap_servers, limited.name)) == {b"stops"}


def test_what_expired_after_it_was_published_is_not_claimed_by_the_next_relay(
    database: str, bootstrap_servers: str, topic: str, limited: Limited
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=False) as session:
            first = insert(conn, topic, keys_of_lanes(conn, topic, LANE)[0], b"first")
            turn_until(session, lambda: is_published(conn, first), "the lane has a progress")
            _, stops, behind = stop_behind_one(conn, topic, limited)
            turn_until(session, lambda: lane_row(conn)[0], "the lane stops")
            limited.repair()
            operator = hold_when_announced(session, database)
            request(conn)
            turn_until(session, lambda: is_published(conn, stops, behind), "the lane goes on")
        operator().close()
        assert lane_row(conn) == (True, True), "nothing says that it did"
        conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'")
        over = "UPDATE outbox.message SET deliver_before = clock_timestamp() WHERE message_id = %s"
        for one in (stops, behind):
            conn.execute(over, [one])
        last = insert(conn, topic, keys_of_lanes(conn, topic, LANE)[0], b"last")
        never = insert(conn, topic, keys_of_lanes(conn, topic, LANE)[0], b"never")
        conn.execute(over, [never])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: is_published(conn, last), "the next relay goes on")
            claims = "SELECT message_id::text FROM outbox.waiting ORDER BY id"
            turn_until(session, lambda: bool(conn.execute(claims).fetchone()), "a message has expired")
            turn_until(session, lambda: lane_row(conn) == (False, False), "the row is clean")
            assert conn.execute(claims).fetchall() == [(never,)]


def test_after_a_death_with_an_unwritten_stop_first_appearances_are_in_order(
    database: str, bootstrap_servers: str, topic: str, limited: Limited
) -> None:
    with connect(database) as conn:
        with (
            relay_session(database, bootstrap_servers, clean=False) as session,
            holding(database, HOLD),
        ):
            _, stops, behind = stop_behind_one(conn, topic, limited)
            turn_until(session, stopped_in_memory(session), "the lane stops")
        assert lane_row(conn) == (False, False)
        conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'")
        limited.repair()
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: is_published(conn, stops, behind), "the next relay goes on")
    assert list(dict.fromkeys(lane_values(bootstrap_servers, topic))) == [b"before", b"behind"]
    assert values(bootstrap_servers, limited.name) == [b"stops"]


def test_a_clean_stop_does_not_wait_and_what_was_retried_stays_guarded(
    database: str, bootstrap_servers: str, topic: str, limited: Limited
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers) as session:
            _, stops, _ = stop_behind_one(conn, topic, limited)
            turn_until(session, lambda: lane_row(conn)[0], "the lane stops")
            operator = hold_when_announced(session, database)
            request(conn)
            turn_until(session, lambda: lane_row(conn)[1], "the retry is announced")
            turn_until(session, stopped_in_memory(session), "the lane stops again")
        assert lane_row(conn) == (True, True)
        operator().close()
        with pytest.raises(CheckViolation, match="has ended, and has not recorded"):
            conn.execute(SET_ASIDE, [stops])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: lane_row(conn) == (True, False), "the next relay records the stop")
            conn.execute(SET_ASIDE, [stops])
