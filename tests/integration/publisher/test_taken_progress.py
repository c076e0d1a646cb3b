"""A relay that waits for its turn to take lanes goes on from what their owner has recorded meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox_relay.publisher import lease, session
from tests.support.lanes import take
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until

WAITS = """
    SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
                   WHERE NOT granted AND relation = 'outbox.lease'::regclass AND datname = current_database())
"""


def test_floors_are_read_when_the_lock_of_taking_is_held(
    database: str, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TAKE_WAIT_S", 60.0)
    monkeypatch.setattr(session, "LOOK_EVERY_S", 3_600.0)  # the owner gives nothing back
    with relay_session(database, bootstrap_servers, clean=False) as owner, connect(database) as conn:
        turn_until(owner, lambda: owner.counts.polls > 2, "it polls")
        with connect(database) as taker, connect(database) as locker, ThreadPoolExecutor(1) as thread:
            waiting = take(taker, "taker", 60, lanes=[])
            with locker.transaction():
                locker.execute("LOCK TABLE outbox.lease IN SHARE ROW EXCLUSIVE MODE")
                taken = thread.submit(waiting.take, taker, range(8))
                wait_until(lambda: conn.execute(WAITS).fetchone() == (True,), "the taker waits")
                insert(conn, topic, "k", "k:0")
                turn_until(owner, lambda: owner.counts.recorded == 1, "it is recorded")
                locker.execute("UPDATE outbox.lease SET leased_until = now() WHERE owner <> 'taker'")
            recorded = conn.execute("SELECT snapshot::text FROM outbox.publication").fetchall()
            floors = taken.result(60).floors
            assert set(floors) == set(range(8))
            assert [(str(floor),) for floor in floors.values()] == recorded * 8
