"""What is held behind a message that failed is published in order, whatever happens meanwhile."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from outbox_relay.publisher.core.values import Read
from outbox_relay.publisher.hands import writes
from outbox_relay.publisher.hands.reads import Brought, Reads
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.kafka_records import read_topic
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import loop_of, turn_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

UNREQUESTED = "SELECT FROM outbox.parked_key WHERE requested_at IS NULL"
END_LEASE = "UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 second'"


def test_held_rows_keep_their_positions(database: str, bootstrap_servers: str, parking: Parking) -> None:
    positions = "SELECT position, xid FROM outbox.message WHERE key = %s ORDER BY id"
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        before = parking.conn.execute(positions, [parking.bad.encode()]).fetchall()
        parking.repair()
        # Committed, and not read when the drain begins.
        parking.send(parking.bad, 2)
        parking.request()
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
    monkeypatch.setattr(writes, "HOLD_PAGE", 2)
    with relay(database, bootstrap_servers) as session, connect(database) as late:
        late.execute("BEGIN")
        insert(late, parking.topic, parking.bad, f"{parking.bad}:late", lane=3)
        parking.fail(session, 1, 2, 3, 4)
        parking.repair()
        read = Reads._drain

        def commit_late(reads: Reads, of: Read) -> Brought:
            page = read(reads, of)
            if page.raws and late.info.transaction_status == TransactionStatus.INTRANS:
                late.execute("COMMIT")
            return page

        monkeypatch.setattr(Reads, "_drain", commit_late)
        parking.request()
        parking.drain(session)
    values = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    assert values.count(f"{parking.bad}:late".encode()) == 1
    assert values.index(f"{parking.bad}:late".encode()) > 0
    values.remove(f"{parking.bad}:late".encode())
    assert values == [f"{parking.bad}:{version}".encode() for version in range(5)]


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


def test_a_paused_owner_cannot_unpark_a_key(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "HOLD_PAGE", 2)
    with relay(database, bootstrap_servers, clean=False) as paused:
        parking.fail(paused, 1, 2, 3)
        parking.repair()
        with withheld_acknowledgements():
            parking.request()
            turn_until(paused, lambda: loop_of(paused).wires.unacknowledged > 0, "the head is on the wire")
            paused._renewal.stop()
            parking.conn.execute(END_LEASE)
        with relay(database, bootstrap_servers) as successor:
            assert successor.lanes == frozenset(range(8))
            with pytest.raises(LeaseLostError):
                turn_until(paused, lambda: False, "the drain is recorded")
            assert parking.reasons == ["failed", "held", "held", "held"]
            assert parking.doubtful == [True, True, False, False], "two of them were announced"
            assert len(parking.keys) == 1
            parking.drain(successor)
    check(bootstrap_servers, parking, 4, 0, repeated=True)


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
        parking.request()
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
