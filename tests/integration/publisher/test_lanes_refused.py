"""Relays that cannot work beside the others: refused by name, before they have any lane."""

from __future__ import annotations

import pytest

from outbox_relay.publisher import lease
from outbox_relay.publisher.lease import RelayRefusedError
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.shard import Shard
from tests.support.lanes import take
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until


def test_relays_of_distant_versions_are_refused(conn: Connection) -> None:
    take(conn, "older", 60, lanes=[])
    conn.execute("UPDATE outbox.lease SET version = %s", [lease.VERSION + 1])
    take(conn, "one apart", 60, lanes=[])
    conn.execute("UPDATE outbox.lease SET version = %s WHERE owner = 'older'", [lease.VERSION + 2])
    with pytest.raises(RelayRefusedError, match=f"older hands lanes over by version {lease.VERSION + 2}"):
        take(conn, "two apart", 60, lanes=[])


def test_a_database_with_another_number_of_lanes_is_refused(conn: Connection) -> None:
    conn.execute("DELETE FROM outbox.lane WHERE lane > 3")
    with pytest.raises(RelayRefusedError, match="4 lanes, and this version works with 8"):
        lease.join(conn, "me", 60)
    assert conn.execute("SELECT count(*) FROM outbox.lease").fetchone() == (0,)


@pytest.mark.parametrize(
    ("living", "joining"), [("1/1", "1/2"), ("2/2", "1/1"), ("1/4", "1/3"), (None, "1/2")], ids=str
)
def test_a_relay_that_divides_the_lanes_otherwise_is_refused(
    database: str, conn: Connection, living: str | None, joining: str
) -> None:
    """None: a relay of the version before, which may have any lane."""
    stated = living or "1/1"
    first = lease.join(conn, "first", 60, shard=Shard.parse(stated))
    conn.execute("UPDATE outbox.lease SET shard = %s", [living])
    with connect(database) as other:
        with pytest.raises(
            RelayRefusedError, match=rf"--shard {joining} .* first leads shard {stated}(.|\n)*OUTBOX_SHARD"
        ):
            lease.join(other, "second", 60, shard=Shard.parse(joining))
        first.release(conn)
        assert lease.join(other, "second", 60, shard=Shard.parse(joining)).shard == Shard.parse(joining)


@pytest.mark.parametrize("living", ["1/2", "2/2"])
def test_a_relay_of_the_same_division_is_not_refused(database: str, conn: Connection, living: str) -> None:
    lease.join(conn, "first", 60, shard=Shard.parse(living))
    with connect(database) as other:
        lease.join(other, "second", 60, shard=Shard.parse("2/2"))


def test_a_pooler_that_divides_the_session_is_named(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        # As after the pooler's reset, in another session of the server.
        session._conn.execute("RESET ALL")
        with pytest.raises(RelayRefusedError, match="pooler in transaction or statement mode"):
            turn_until(session, lambda: False, "it notices")


@pytest.mark.parametrize("statement", ["PREPARE _pg3_{} AS SELECT 1", "DEALLOCATE _pg3_{}"])
def test_a_pooler_that_mixes_up_prepared_statements_is_named(
    database: str, bootstrap_servers: str, statement: str
) -> None:
    """As PgBouncer before 1.21: in another session the driver's statement exists already, or does not yet."""
    with RelayThread(database, bootstrap_servers) as relay:
        session = wait_until(lambda: relay.session, "the relay runs")
        raw, done = session._conn.pgconn, list[object]()

        def mix_up(session: Session) -> None:
            if not done:
                done.extend(raw.exec_(statement.format(number).encode()) for number in range(300))

        relay._relay.on_turn = mix_up
        with connect(database) as conn:
            insert(conn, "t", "k", "k:0")
        wait_until(lambda: not relay.is_running, "the relay ends")
        assert isinstance(relay.error, RelayRefusedError)
        assert "pooler in transaction or statement mode" in str(relay.error)
