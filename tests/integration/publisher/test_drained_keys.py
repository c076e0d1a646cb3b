"""What is held behind a message that failed is published in order, whatever happens meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace

import psycopg
import pytest
from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.parked import KeyDrain

from outbox_relay.publisher import draining, records
from outbox_relay.publisher.finder import QUEUE
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.kafka_records import read_topic
from tests.support.parking import REQUEST, Parking, check, relay
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import turn_until

UNREQUESTED = "SELECT FROM outbox.parked_key WHERE requested_at IS NULL"
GIVE_UP = "UPDATE outbox.message SET state = 'DEAD', remark = 'by hand' WHERE message_id = %s"
STOPPED = "SELECT FROM outbox.lane WHERE stopped_message = %s AND retrying_at IS NULL"
END_LEASE = "UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 second'"


def test_held_rows_keep_their_positions(database: str, bootstrap_servers: str, parking: Parking) -> None:
    positions = "SELECT position, xid FROM outbox.message WHERE key = %s ORDER BY id"
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        before = parking.conn.execute(positions, [parking.bad.encode()]).fetchall()
        parking.repair()
        # Committed, and not read when the drain begins.
        parking.send(parking.bad, 2)
        parking.request(session)
        parking.drain(session)
        after = parking.conn.execute(positions, [parking.bad.encode()]).fetchall()
        assert after[:2] == before
    check(bootstrap_servers, parking, 3, 0)


def test_a_drain_begins_when_all_claims_of_the_key_are_written(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.send(parking.bad, 2)
        assert session.run_once(0), "its claim is made, and written with its batch, in a later turn"
        assert parking.reasons == ["failed", "held"]
        parking.publish(session)
    check(bootstrap_servers, parking, 3, 0)


def test_a_message_that_commits_late_below_a_drained_one_is_published(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position is lower than those of a page that is on the wire; the next page begins with it."""
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with relay(database, bootstrap_servers) as session, connect(database) as late:
        late.execute("BEGIN")
        insert(late, parking.topic, parking.bad, f"{parking.bad}:late", lane=3)
        parking.fail(session, 1, 2, 3, 4)
        parking.repair()
        note = session._note_drained

        def commit_late(drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
            note(drain, part, batch)
            if drain.pages == 2:
                late.execute("COMMIT")

        session._note_drained = commit_late
        parking.request(session)
        parking.drain(session)
    assert [record.value for record in read_topic(bootstrap_servers, parking.topic)] == [
        f"{parking.bad}:{version}".encode() for version in ("0", "1", "2", "late", "3", "4")
    ]


def test_a_relay_that_is_to_stop_reads_nothing_behind_the_last_page_of_a_drain(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """It does not wait for that page. What it read would be held under a key that goes with the record of the page."""
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.repair()
        note, is_asked = session._note_drained, threading.Event()

        def ask_to_stop(drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
            note(drain, part, batch)
            if part.is_all:
                parking.send(parking.bad, 2)
                session.stopping = lambda: True
                is_asked.set()

        session._note_drained = ask_to_stop
        parking.request(session)
        turn_until(session, is_asked.is_set, "the last page is on the wire")
    assert parking.keys == []
    assert parking.reasons == []
    with relay(database, bootstrap_servers) as successor:
        parking.settle(successor)
    check(bootstrap_servers, parking, 3, 0)


def test_a_clean_restart_after_a_drain_publishes_nothing_again(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Claims alone record no progress: a successor would read again what was drained."""
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.good, 0)
        parking.settle(session)
        parking.fail(session, 1)
        parking.publish(session)
    parking.send(parking.bad, 2)
    with relay(database, bootstrap_servers) as successor:
        parking.settle(successor)
    check(bootstrap_servers, parking, 3, 1)


def test_a_successor_reads_its_lanes_before_it_drains_their_keys(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Claims alone record no progress: it reads them again, and must find them waiting, not drained."""
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.good, 0)
        parking.settle(session)
        parking.fail(session, 1)
    parking.repair()
    parking.request()
    with relay(database, bootstrap_servers) as successor:
        parking.drain(successor)
    check(bootstrap_servers, parking, 2, 1)


def test_a_lane_that_goes_on_after_a_stop_is_read_before_its_keys_are_drained(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it claims meanwhile is recorded as read when it has caught up."""
    can_park = records.can_park
    monkeypatch.setattr(records, "can_park", lambda row, reason: row[QUEUE] != 99 and can_park(row, reason))
    with relay(database, bootstrap_servers) as session:
        session._finder.page_size = 1
        for key, last in ((parking.bad, 1), (parking.good, 5)):
            parking.send(key, 0, poison=True)
            parking.send(key, *range(1, last + 1))
        parking.settle(session)
        stops_it = insert(parking.conn, parking.topic, None, b"stops its lane", lane=3, queue=99)
        parking.send(parking.bad, *range(2, 6))
        turn_until(
            session,
            lambda: parking.conn.execute(STOPPED, [stops_it]).rowcount == 1 and len(parking.reasons) == 8,
            "the lane stops in front of 2",
        )
        parking.repair()
        parking.conn.execute(GIVE_UP, [stops_it])
        for key in (parking.good, parking.bad):
            parking.conn.execute(REQUEST + " WHERE order_key = %s", [key.encode()])
        session._drain_at = 0.0
        turn_until(session, lambda: not session.stopped, "the lane goes on")
        while session._stops.known([3]):
            assert "failed" in parking.reasons, "the other key is not drained before the lane has caught up"
            session._drain_at = 0.0
            session.run_once(0.005)
        parking.drain(session)
    with relay(database, bootstrap_servers) as successor:
        parking.send(parking.good, 6)
        parking.settle(successor)
    check(bootstrap_servers, parking, 6, 7)


def test_a_drain_waits_until_its_announcement_is_replicated(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Meanwhile it is not announced, so that a message of its key can be given up."""
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
        parking.repair()
        counts, asked = session._recorder.barrier_counts, 0

        def is_not_replicated() -> bool:
            nonlocal asked
            asked += 1
            return False

        session._recorder.barrier_counts = is_not_replicated
        parking.request(session)
        turn_until(session, lambda: asked > 0, "the drain is announced")
        assert parking.reasons == ["failed"]
        assert parking.conn.execute("SELECT draining_at FROM outbox.parked_key").fetchall() == [(None,)]
        session._recorder.barrier_counts = counts
        session._drain_at = 0.0
        parking.drain(session)
    check(bootstrap_servers, parking, 1, 0)


def test_a_held_row_that_is_not_committed_does_not_keep_a_drain_from_ending(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Nothing leads to such a row but a hand in the tables."""
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2)
        with parking.conn.transaction():
            parking.conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER USER")
            parking.conn.execute(
                "UPDATE outbox.message SET state = 'CANCELLED' WHERE id = (SELECT max(id) FROM outbox.message)"
            )
            parking.conn.execute("ALTER TABLE outbox.message ENABLE TRIGGER USER")
        parking.publish(session)
    assert [record.value for record in read_topic(bootstrap_servers, parking.topic)] == [
        f"{parking.bad}:0".encode(),
        f"{parking.bad}:1".encode(),
    ]


def test_what_became_of_a_drain_is_refused_under_another_epoch(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Also where the drain has no publication, which would be refused first."""
    with relay(database, bootstrap_servers, clean=False) as paused:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(paused)
        parking.request()
        drain = paused._parked.requested([3])
        assert drain is not None
        paused._renewal.stop()
        parking.conn.execute(END_LEASE)
        with relay(database, bootstrap_servers):
            with pytest.raises(LeaseLostError):
                paused._recorder.drained(replace(drain, done=[drain.number], is_all=True))
            assert len(parking.keys) == 1
            assert parking.reasons == ["failed"]


def test_a_paused_owner_cannot_unpark_a_key(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with relay(database, bootstrap_servers, clean=False) as paused:
        parking.fail(paused, 1, 2, 3)
        parking.repair()
        parking.request(paused)
        turn_until(paused, lambda: parking.reasons == ["held"] * 3, "the head is drained, alone")
        turn_until(
            paused, lambda: paused._drain is not None and paused._drain.pages == 2, "a page is on the wire"
        )
        paused._renewal.stop()
        assert parking.reasons == ["held"] * 3, "it is not recorded yet"
        parking.conn.execute(END_LEASE)
        with relay(database, bootstrap_servers) as successor:
            assert successor.lanes == frozenset(range(8))
            with pytest.raises(LeaseLostError):
                turn_until(paused, lambda: False, "the drain is recorded")
            assert parking.reasons == ["held"] * 3
            assert parking.doubtful == [True, True, False], "two of them were on the wire"
            assert len(parking.keys) == 1
            parking.drain(successor)
    check(bootstrap_servers, parking, 4, 0, repeated=True)


def test_what_joins_a_key_after_a_take_over_is_not_listed_for_a_paused_drain(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Paused behind its announcement, the owner may still publish what it listed: all of that is in doubt."""
    with relay(database, bootstrap_servers, clean=False) as paused:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(paused)
        parking.request()
        drain = paused._parked.requested([3])
        assert drain is not None
        listed = paused._parked.announce(drain, 100)
        assert listed is not None
        paused._renewal.stop()
        parking.conn.execute(END_LEASE)
        parking.conn.execute("UPDATE outbox.parked_key SET requested_at = NULL")
        with relay(database, bootstrap_servers) as successor:
            parking.send(parking.bad, 1)
            turn_until(successor, lambda: parking.doubtful == [True, False], "the later one is held")
            waiting = [row[0] for row in parking.conn.execute("SELECT id FROM outbox.waiting ORDER BY place")]
            assert list(listed) == waiting[:1]
            assert paused._parked.announce(drain, 100) is None


def test_what_a_promoted_standby_holds_is_in_doubt(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    give_up = "UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s"
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
    parking.conn.execute("UPDATE outbox.lane SET timeline = timeline + 1")
    with pytest.raises(psycopg.errors.CheckViolation, match="this server took over from another one"):
        parking.conn.execute(give_up, [parking.head])
    with relay(database, bootstrap_servers):
        assert parking.doubtful == [True]
        with pytest.raises(psycopg.errors.CheckViolation, match="may be in Kafka already"):
            parking.conn.execute(give_up, [parking.head])


def test_the_drain_of_a_hot_key_ends(database: str, bootstrap_servers: str, parking: Parking) -> None:
    sent = 1
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
        parking.repair()

        def is_drained() -> bool:
            nonlocal sent
            if not parking.keys:
                return True
            parking.send(parking.bad, sent, sent + 1, sent + 2)
            sent += 3
            return False

        turn_until(session, lambda: is_drained() or sent > 100, "many are held")
        assert len(parking.reasons) > 50
        parking.request()
        turn_until(session, is_drained, "the drain ends while messages are sent")
        parking.drain(session)
    check(bootstrap_servers, parking, sent, 0)


def test_a_drain_that_fails_leaves_what_was_in_doubt_in_doubt(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """An earlier relay may have published it: the doubts of a lane say nothing of a drain while it was stopped."""
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.conn.execute("UPDATE outbox.waiting SET in_doubt = true")
        parking.request(session)
        turn_until(
            session, lambda: parking.conn.execute(UNREQUESTED).rowcount == 1, "the head has failed again"
        )
    assert parking.reasons == ["failed", "held"]
    assert parking.doubtful == [True, True]


def test_a_key_stays_parked_at_the_next_message_that_fails(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, 1)
        parking.send(parking.bad, 2, poison=True)
        parking.send(parking.bad, 3)
        parking.settle(session)
        head = parking.head
        parking.conn.execute("UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [head])
        turn_until(
            session, lambda: parking.reasons == ["failed", "held"], "the key is drained up to the next"
        )
        assert parking.head != head
        parking.send(parking.bad, 4)
        parking.settle(session)
        parking.repair()
        parking.request()
        parking.drain(session)
    values = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    assert values == [f"{parking.bad}:{version}".encode() for version in (1, 2, 3, 4)]
