"""An upgrade takes the locks of all its scripts before the first one, and waits for none while others wait for it.

Whoever uses tables of the outbox in whatever order can meet it at any line. It waits for the first table while nobody
else waits for another one, and gives all back when the others do not follow in less than deadlock_timeout: no circle is
there when somebody looks for one. It dies, or is paused: see test_upgrade_under_load.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import psycopg
import pytest

from outbox_migrations import api, sql_files
from outbox_relay.database import schema
from tests.support.locks import UPGRADE_LOCKS, wait_for_waiting
from tests.support.plain_inserts import Connection, connect
from tests.support.servers import MakeDatabase

HELD = """
    SELECT l.relation, l.relation::regclass::text, max(array_position('{AccessShareLock,RowShareLock,RowExclusiveLock,
        ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'::text[], l.mode))
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = 'outbox'::regnamespace
    WHERE l.pid = pg_backend_pid() AND l.granted GROUP BY 1
"""
RELATIONS = """
    SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
"""
"""Indexes are locked after their tables."""
BESIDE_ALL = 3
"""Locks up to RowExclusiveLock, of those who read and write rows, wait for nobody who does so, too."""
LOCKED = {
    f"outbox.{name}"
    for name in (
        "message",
        "inbox",
        "inbox_held_key",
        "inbox_parked",
        "inbox_replay",
        "inbox_position",
        "consumer_group",
        "consumer_member",
        "lease",
        "parked_key",
    )
}
"""Tables from which an upgrade locks out those who write them."""
TABLES = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND c.relname NOT IN ('schema_version', 'partition_lock', 'inbox_partition_lock')
"""


@pytest.fixture
def old(make_database: MakeDatabase) -> str:
    """A database of revision 0003."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn, "0003")
    return dsn


@pytest.fixture
def conn(old: str) -> Iterator[Connection]:
    with connect(old) as conn:
        yield conn


@pytest.mark.parametrize("start", ["0001", "0002", "0003"])
def test_no_script_of_an_upgrade_takes_a_lock_that_it_may_have_to_wait_for(
    make_database: MakeDatabase, start: str
) -> None:
    dsn = make_database(migrated=False)
    api.upgrade(dsn, start)
    with psycopg.connect(dsn) as upgrading:
        there = {oid for (oid,) in upgrading.execute(RELATIONS)}
        scripts = api.scripts(start, schema.REVISION)
        for script in scripts:
            upgrading.execute(script.encode())
            if script == sql_files.text("locks.sql"):
                break
        before = {oid: lock for oid, _, lock in upgrading.execute(HELD)}
        for script in scripts:
            upgrading.execute(script.encode())
        late = [
            (name, lock)
            for oid, name, lock in upgrading.execute(HELD)
            if oid in there and lock > max(before.get(oid, 0), BESIDE_ALL)
        ]
        assert before
        assert not late
        upgrading.rollback()


def test_who_uses_tables_in_any_order_meets_no_deadlock_with_an_upgrade(old: str, conn: Connection) -> None:
    tables = [name for (name,) in conn.execute(TABLES).fetchall()]
    waited = []
    for first in tables:
        with (
            ThreadPoolExecutor(1) as pool,
            psycopg.connect(old) as user,
            psycopg.connect(old) as upgrading,
        ):
            user.execute("SET lock_timeout = '10s'")
            user.execute(f"LOCK TABLE {first} IN ROW EXCLUSIVE MODE")
            upgrade = pool.submit(api.upgrade_in, upgrading)
            if first in LOCKED:
                wait_for_waiting(conn, UPGRADE_LOCKS)
                began = monotonic()
                for name in tables:
                    user.execute(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE")
                waited.append(monotonic() - began)
            user.rollback()
            assert upgrade.result().current == "0003", first
            upgrading.rollback()
    assert len(waited) == len(LOCKED)
    assert max(waited) < 10, "and is held up for half a second an attempt"
