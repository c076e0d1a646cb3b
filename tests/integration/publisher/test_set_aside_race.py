"""What a lane stopped at is set aside by an operator while the relay tries it again: one of them, in either order.

The dangerous schedule: the cause is repaired, the relay reads the message and gives it to Kafka, an operator makes it
DEAD, and the publication is recorded afterwards. The relay's announcement in outbox.lane and the operator's lock on
that row exclude it. The gates below stand at the announcement, on real servers.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.errors import CheckViolation

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes
from tests.support.relay_session import relay_session, turn_until
from tests.support.stopped_lanes import Limited

SET_ASIDE = "UPDATE outbox.message SET state = 'DEAD', remark = 'by hand' WHERE message_id = %s"
STATUS = "SELECT status FROM outbox.message_status WHERE message_id = %s"
LANE = 5


@pytest.fixture
def limited(conn: Connection, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> Limited:
    return Limited(conn, bootstrap_servers, monkeypatch)


def lane_row(conn: Connection) -> tuple[bool, bool, bool]:
    """Whether the lane is stopped, being retried, and requested."""
    row = conn.execute(
        "SELECT stopped_error IS NOT NULL, retrying_at IS NOT NULL, retry_requested_at IS NOT NULL "
        "FROM outbox.lane WHERE lane = %s",
        [LANE],
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def status(conn: Connection, message_id: str) -> str:
    row = conn.execute(STATUS, [message_id]).fetchone()
    assert row is not None
    return str(row[0])


def stop_at(session: Session, conn: Connection, limited: Limited) -> tuple[str, str]:
    """Write two messages of one key that cannot be published; let the lane stop at the first."""
    first, second = (
        insert(conn, limited.name, limited.key(LANE), body, lane=LANE) for body in (b"first", b"second")
    )
    turn_until(session, lambda: lane_row(conn)[0], "the lane stops")
    return first, second


def request(conn: Connection) -> None:
    conn.execute("UPDATE outbox.lane SET retry_requested_at = clock_timestamp() WHERE lane = %s", [LANE])


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap_servers, topic)]


def test_what_the_relay_tries_again_is_not_set_aside(
    database: str, bootstrap_servers: str, limited: Limited
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        first, second = stop_at(session, conn, limited)
        limited.repair()
        announce, refusals = session._retries.announce, []

        def announce_and_ask(lane: int) -> bool:
            announced = announce(lane)
            with pytest.raises(CheckViolation) as caught:
                conn.execute(SET_ASIDE, [first])
            refusals.append(str(caught.value))
            return announced

        session._retries.announce = announce_and_ask  # type: ignore[method-assign]
        request(conn)
        turn_until(session, lambda: status(conn, second) == "PUBLISHED", "both are published")
        assert f"lane {LANE} is trying it again; repeat in a few seconds" in refusals[0]
        # Recorded: refused for good, and by its place.
        with pytest.raises(CheckViolation, match=r"it is published at 0/0"):
            conn.execute(SET_ASIDE, [first])
        assert lane_row(conn) == (False, False, False)
    assert values(bootstrap_servers, limited.name) == [b"first", b"second"]


def test_what_is_being_set_aside_is_not_tried_again(
    database: str, bootstrap_servers: str, limited: Limited
) -> None:
    with (
        connect(database) as conn,
        psycopg.connect(database) as operator,
        relay_session(database, bootstrap_servers) as session,
    ):
        first, second = stop_at(session, conn, limited)
        limited.repair()
        announce, tries = session._retries.announce, []

        def note(lane: int) -> bool:
            tries.append(announce(lane))
            return tries[-1]

        session._retries.announce = note  # type: ignore[method-assign]
        operator.execute(SET_ASIDE, [first])
        request_pending = session._stops.hurry
        request_pending([LANE])
        turn_until(session, lambda: bool(tries), "the relay meets the operator's lock")
        assert tries == [False]
        assert lane_row(conn) == (True, False, False)
        operator.commit()
        turn_until(session, lambda: status(conn, second) == "PUBLISHED", "the lane goes on behind it")
        assert status(conn, first) == "DEAD"
    assert values(bootstrap_servers, limited.name) == [b"second"]


def test_a_lane_goes_on_soon_after_its_message_is_set_aside(
    database: str, bootstrap_servers: str, limited: Limited, topic: str
) -> None:
    """The trigger asks for it; the back-off would be a minute."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        (other,) = keys_of_lanes(conn, topic, LANE)
        bad = insert(conn, limited.name, limited.key(LANE), b"bad", lane=LANE)
        good = insert(conn, topic, other, b"good")
        turn_until(session, lambda: lane_row(conn)[0], "the lane stops")
        session._stops._stopped[LANE].retry_at += 3_600
        conn.execute(SET_ASIDE, [bad])
        assert lane_row(conn) == (True, False, True)
        turn_until(session, lambda: status(conn, good) == "PUBLISHED", "the lane goes on")
        assert lane_row(conn) == (False, False, False)
        # Tried again at the end of the order, where it stops the lane again; and given up.
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [bad])
        turn_until(session, lambda: lane_row(conn)[0], "the lane stops again")
        conn.execute(SET_ASIDE, [bad])
        conn.execute("UPDATE outbox.message SET state = 'SKIPPED' WHERE message_id = %s", [bad])
        with pytest.raises(CheckViolation, match="is SKIPPED and cannot become COMMITTED"):
            conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [bad])


def test_a_retried_message_takes_its_place_when_it_is_retried(
    database: str, bootstrap_servers: str, limited: Limited
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        first, second = stop_at(session, conn, limited)
        conn.execute(SET_ASIDE, [first])
        limited.repair()
        turn_until(session, lambda: status(conn, second) == "PUBLISHED", "the lane goes on")
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [first])
        turn_until(session, lambda: status(conn, first) == "PUBLISHED", "it is published after all")
    assert values(bootstrap_servers, limited.name) == [b"second", b"first"]


def test_only_what_its_lane_stopped_at_is_set_aside(
    database: str, bootstrap_servers: str, limited: Limited, topic: str
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        first, second = stop_at(session, conn, limited)
        with pytest.raises(CheckViolation, match=f"not what lane {LANE} stopped at; that is message {first}"):
            conn.execute(SET_ASIDE, [second])
        (elsewhere,) = keys_of_lanes(conn, topic, LANE + 1)
        with pytest.raises(CheckViolation, match=f"lane {LANE + 1} is not stopped at it"):
            conn.execute(SET_ASIDE, [insert(conn, topic, elsewhere, b"x")])


def test_after_a_clean_stop_what_a_lane_stopped_at_can_be_set_aside(
    database: str, bootstrap_servers: str, limited: Limited
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers) as session:
            first, second = stop_at(session, conn, limited)
            # Announced, and stopped before the lane is read.
            assert session._retries.announce(LANE)
        assert lane_row(conn) == (True, False, False)
        conn.execute(SET_ASIDE, [first])
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: lane_row(conn)[0], "the next relay stops at the second")
            with pytest.raises(CheckViolation, match=f"that is message {second}"):
                conn.execute(SET_ASIDE, [insert(conn, limited.name, limited.key(LANE), b"x", lane=LANE)])


def test_after_a_relay_died_in_a_retry_nothing_is_set_aside_until_the_next_one_read(
    database: str, bootstrap_servers: str, limited: Limited
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=False) as session:
            first, _ = stop_at(session, conn, limited)
            assert session._retries.announce(LANE)
        conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'")
        with pytest.raises(CheckViolation, match="has ended, and has not recorded") as caught:
            conn.execute(SET_ASIDE, [first])
        assert "outbox relay run" in str(caught.value.diag.message_hint)
        limited.repair()
        with relay_session(database, bootstrap_servers) as session:
            turn_until(session, lambda: status(conn, first) == "PUBLISHED", "it is published")
            with pytest.raises(CheckViolation, match="it is published at 0/0"):
                conn.execute(SET_ASIDE, [first])


def test_a_published_message_becomes_dead_for_nobody(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    """Also where outbox.lane claims that its lane is stopped at it, and it waits."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        message_id = insert(conn, topic, "k", b"x")
        turn_until(session, lambda: status(conn, message_id) == "PUBLISHED", "it is published")
        for lie in (
            "SELECT",
            """
            UPDATE outbox.lane l SET stopped_error = 'x', stopped_message = m.message_id
            FROM outbox.message m WHERE l.lane = m.lane
            """,
            "INSERT INTO outbox.waiting (id, message_id, reason) SELECT id, message_id, 'parked' FROM outbox.message",
        ):
            conn.execute(lie.encode())
            with pytest.raises(CheckViolation, match=r"it is published at \d/0"):
                conn.execute(SET_ASIDE, [message_id])
