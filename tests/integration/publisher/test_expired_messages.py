"""A message whose deliver_before is over is never published: it is listed as DEAD, and holds nobody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox import Message, Outbox
from outbox.partitioning.lanes import lane_of
from outbox_relay.operations.dead_letters import act
from tests.support.kafka_records import read_topic
from tests.support.outbox_command import outbox, succeed
from tests.support.parking import Parking, relay
from tests.support.plain_inserts import connect
from tests.support.relay_session import turn_until
from tests.support.servers import MakeTopic
from tests.support.withheld_acknowledgements import withheld_acknowledgements

SEND = """
    INSERT INTO outbox.message (topic, key, body, lane, headers, deliver_at, deliver_before)
    VALUES (%s, %s, %s, %s, %s, clock_timestamp() + %s, clock_timestamp() + %s) RETURNING id
"""
OVER = timedelta(seconds=-1)
STATUS = "SELECT status, waiting FROM outbox.message_status WHERE id = %s"


def _send(
    parking: Parking,
    version: int,
    before: timedelta,
    *,
    at: timedelta | None = None,
    key: str = "",
    headers: str | None = None,
) -> int:
    key = key or parking.bad
    lane = lane_of(parking.topic, None, key.encode())
    row = parking.conn.execute(
        SEND, [parking.topic, key, f"{key}:{version}", lane, headers, at, before]
    ).fetchone()
    assert row is not None
    return int(row[0])


def _expire(parking: Parking, id_: int) -> None:
    """Let the time of a message be over now, when the test is ready for it."""
    changed = parking.conn.execute(
        "UPDATE outbox.message SET deliver_before = clock_timestamp() WHERE id = %s", [id_]
    )
    assert changed.rowcount == 1


def _bodies(bootstrap_servers: str, parking: Parking) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap_servers, parking.topic)]


def _status(parking: Parking, id_: int) -> tuple[str, str | None]:
    row = parking.conn.execute(STATUS, [id_]).fetchone()
    assert row is not None
    return row[0], row[1]


def _expected(parking: Parking, *versions: int) -> list[bytes]:
    return [f"{parking.bad}:{version}".encode() for version in versions]


@pytest.mark.feature("H-18")
def test_an_expired_message_is_not_published_and_holds_nobody(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        with parking.conn.transaction():
            parking.send(parking.bad, 0)
            expired = _send(parking, 1, OVER)
            in_time = _send(parking, 2, timedelta(hours=1))
            parking.send(parking.bad, 3)
        parking.settle(session)
        assert _status(parking, expired) == ("DEAD", "expired")
        assert _status(parking, in_time) == ("PUBLISHED", None)
        assert parking.keys == []
    with relay(database, bootstrap_servers) as successor:
        parking.send(parking.bad, 4)
        parking.settle(successor)
    assert _bodies(bootstrap_servers, parking) == _expected(parking, 0, 2, 3, 4)


def test_a_successor_without_the_claim_finds_it_again(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers, clean=False) as session:
        with withheld_acknowledgements():
            with parking.conn.transaction():
                parking.send(parking.bad, 0)
                expired = _send(parking, 1, OVER)
            turn_until(session, lambda: session.counts.published == 1, "the first is on the wire")
        assert _status(parking, expired) == ("COMMITTED", None)
    with relay(database, bootstrap_servers) as successor:
        parking.settle(successor)
        assert _status(parking, expired) == ("DEAD", "expired")
        # The dead relay read it: whether it was published then is not known.
        assert parking.doubtful == [True]
    assert set(_bodies(bootstrap_servers, parking)) == set(_expected(parking, 0))


def test_one_that_expires_while_it_is_held_leaves_its_key_in_the_drain(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        held = _send(parking, 2, timedelta(hours=1))
        parking.send(parking.bad, 3)
        turn_until(session, lambda: len(parking.reasons) == 4, "all of the key is held")
        assert _status(parking, held) == ("COMMITTED", "held")
        _expire(parking, held)
        parking.repair()
        parking.request()
        turn_until(session, lambda: not parking.keys, "the key is drained")
        parking.send(parking.bad, 4)
        parking.settle(session)
        assert _status(parking, held) == ("DEAD", "expired")
        assert parking.reasons == ["expired"]
    assert _bodies(bootstrap_servers, parking) == _expected(parking, 0, 1, 3, 4)


def test_a_head_that_expires_lets_its_key_flow(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    much = '{"much": "%s"}' % ("x" * 10_000)
    with relay(database, bootstrap_servers) as session:
        head = _send(parking, 0, timedelta(hours=1), headers=much)
        parking.send(parking.bad, 1, 2)
        parking.settle(session)
        assert parking.reasons == ["failed", "held", "held"]
        _expire(parking, head)
        parking.request()
        turn_until(session, lambda: not parking.keys, "the key is drained")
        assert _status(parking, head) == ("DEAD", "expired")
        parking.settle(session)
    assert _bodies(bootstrap_servers, parking) == _expected(parking, 1, 2)


def test_a_delayed_message_that_is_released_too_late_expires(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    at, before = timedelta(milliseconds=50), timedelta(milliseconds=100)
    late = _send(parking, 0, before, at=at)
    in_time = _send(parking, 1, timedelta(hours=1), at=at)
    parking.conn.execute("SELECT pg_sleep(0.2)")
    with relay(database, bootstrap_servers) as session:
        turn_until(session, lambda: _status(parking, in_time)[0] == "PUBLISHED", "the other is published")
        turn_until(session, lambda: _status(parking, late) == ("DEAD", "expired"), "it has expired")
    assert _bodies(bootstrap_servers, parking) == _expected(parking, 1)


@pytest.mark.feature("H-18")
def test_a_half_message_expires_when_it_is_committed_too_late(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    outbox = Outbox("expiring")
    with connect(database) as conn:
        row = conn.execute("SELECT clock_timestamp() + interval '100 ms'").fetchone()
        assert row is not None
        with conn.transaction():
            half = outbox.prepare(conn, Message(parking.topic, "half", "late", deliver_before=row[0]))
        conn.execute("SELECT pg_sleep(0.2)")
        with conn.transaction():
            outbox.commit(conn, half)
    with relay(database, bootstrap_servers) as session:
        turn_until(session, lambda: _status(parking, half.id) == ("DEAD", "expired"), "it has expired")
    assert _bodies(bootstrap_servers, parking) == []


@pytest.mark.parametrize("in_doubt", [False, True])
def test_it_is_given_up_as_certain_or_in_doubt(
    database: str, bootstrap_servers: str, parking: Parking, in_doubt: bool
) -> None:
    with relay(database, bootstrap_servers) as session:
        expired = _send(parking, 0, OVER)
        turn_until(session, lambda: _status(parking, expired)[0] == "DEAD", "it has expired")
        parking.conn.execute("UPDATE outbox.waiting SET in_doubt = %s", [in_doubt])
        wrong, right = ("DEAD", "SKIPPED") if in_doubt else ("SKIPPED", "DEAD")
        with pytest.raises(Exception, match="cannot become"):
            parking.conn.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [wrong, expired])
        parking.conn.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [right, expired])
        assert _status(parking, expired) == (right, None)
        assert parking.reasons == []
        if not in_doubt:
            # Published again, it expires again.
            parking.conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE id = %s", [expired])
            turn_until(session, lambda: _status(parking, expired) == ("DEAD", "expired"), "it expires again")


def test_a_release_is_refused_with_the_reason(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        expired = _send(parking, 0, OVER)
        turn_until(session, lambda: _status(parking, expired)[0] == "DEAD", "it has expired")
        for action, result in (
            ("release", "refused"),
            ("dead", "decided"),
            ("release", "refused"),
            ("skip", "decided"),
        ):
            done = act(parking.conn, action, (expired, None), "a test", 1.0)
            assert done.result == result, done.text
            if action == "release":
                assert done.text.startswith("has expired: its deliver_before, ")
        assert _status(parking, expired) == ("SKIPPED", None)


def test_expired_messages_are_given_up_together(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, parking: Parking
) -> None:
    other = make_topic()
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.conn.execute(SEND, [other, "k", "late", 3, None, None, OVER])
        for version in range(2, 6):
            _send(parking, version, OVER, key=parking.good)
        turn_until(session, lambda: parking.reasons.count("expired") == 5, "they have expired")
    parking.conn.execute(
        "UPDATE outbox.waiting SET in_doubt = true WHERE id = (SELECT max(id) FROM outbox.waiting)"
    )
    options = ("--reason", "over", "--json")
    for given_up, arguments in (
        (3, ("--expired", "--topic", parking.topic)),
        (0, ("--expired", "--topic", parking.topic)),
        (1, ("--expired",)),
        (1, ("--expired", "--may-be-published")),
    ):
        ran = succeed("holds", "skip", *arguments, *options, OUTBOX_DSN=database)
        assert ran.json == {"done": given_up, "failed": []}
    assert parking.reasons == ["failed", "held"], "those of a parked key stay"
    skipped = "SELECT count(*) FROM outbox.message WHERE state = 'SKIPPED' AND remark = 'over'"
    assert parking.conn.execute(skipped).fetchone() == (5,)
    for wrong in ((), ("4711", "--expired"), ("4711", "--topic", "t"), ("--expired", "--error", "E")):
        assert outbox("holds", "skip", *wrong, *options, OUTBOX_DSN=database).code == 2
