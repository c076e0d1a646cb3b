"""One upgrade at a time, by locks that nobody can hold who may not upgrade, and no wait for them without a bound.

A login without rights holds what it can: an upgrade takes no notice. Another upgrade is waited for, and named if it
takes too long. Software of revision 0003 and before holds an advisory lock, and locks a table from its first script on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_migrations import api, sql_files
from outbox_relay.database import schema
from tests.support.locks import UPGRADE_LOCKS, holding, wait_for_waiting
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, connect
from tests.support.strangers import Stranger

KEY = "pg_catalog.hashtextextended('outbox.upgrade', 0)"
OLDER = f"SELECT pg_advisory_xact_lock({KEY})"
"""What software of revision 0003 begins an upgrade with."""
NEWER = "LOCK TABLE outbox.schema_version IN SHARE ROW EXCLUSIVE MODE"
TURN = "%outbox.upgrade%"
LIMIT = 60.0
"""Seconds for an upgrade that waits for nobody; without the mend it waits as long as the stranger wants."""
READABLE = """
    SELECT pg_catalog.format('LOCK TABLE %I.%I IN ACCESS SHARE MODE', n.nspname, c.relname) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v') AND n.nspname IN ('pg_catalog', 'outbox')
        AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
"""


@pytest.fixture
def conn(empty: str) -> Iterator[Connection]:
    with connect(empty) as conn:
        yield conn


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade waits for its turn for a second."""
    text = sql_files.text
    monkeypatch.setattr(sql_files, "text", lambda name: text(name).replace("'60 s'", "'1 s'"))


@pytest.mark.parametrize("start", ["nothing", "0001", "0003"])
def test_a_login_without_rights_holds_up_no_upgrade(
    empty: str, evil: Stranger, pool: ThreadPoolExecutor, start: str
) -> None:
    if start != "nothing":
        api.upgrade(empty, start)
    with psycopg.connect(evil.dsn) as held:
        held.execute("SET default_transaction_isolation = 'repeatable read'")
        held.commit()
        for lock in held.execute(READABLE).fetchall():
            held.execute(lock[0])
        held.execute("CREATE TEMP TABLE schema_version (version_num text)")
        held.execute("CREATE FUNCTION public.outbox() RETURNS void LANGUAGE sql AS ''")
        held.execute(
            f"SELECT pg_advisory_lock({KEY}), pg_advisory_lock_shared(hashtext('outbox')), pg_current_xact_id()"
        )
        with psycopg.connect(evil.dsn) as queued:
            queue = pool.submit(queued.execute, f"SELECT pg_advisory_lock({KEY})")
            try:
                for expected in (None if start == "nothing" else start, schema.REVISION):
                    assert pool.submit(api.upgrade, empty).result(LIMIT).current == expected
            finally:
                held.execute("SELECT pg_advisory_unlock_all()")
                queue.result(LIMIT)
                queued.execute("SELECT pg_advisory_unlock_all()")


@pytest.mark.parametrize("prepared", [False, True])
def test_many_first_upgrades_at_once_do_the_work_once(
    empty: str, evil: Stranger, conn: Connection, pool: ThreadPoolExecutor, prepared: bool
) -> None:
    """Also while a stranger has the lock that all of them could have had."""
    if prepared:
        conn.execute("CREATE SCHEMA outbox")
    with psycopg.connect(evil.dsn) as held:
        held.execute(f"SELECT pg_advisory_lock({KEY})")
        upgrades = [pool.submit(api.upgrade, empty) for _ in range(4)]
        try:
            ran = [upgrade.result(LIMIT) for upgrade in upgrades]
        finally:
            held.execute("SELECT pg_advisory_unlock_all()")
    assert sorted((before.current for before in ran), key=str) == [schema.REVISION] * 3 + [None]


def test_an_upgrade_by_older_software_is_waited_for_and_waits_for_one(
    empty: str, conn: Connection, pool: ThreadPoolExecutor
) -> None:
    api.upgrade(empty, "0002")
    with psycopg.connect(empty) as older:
        older.execute(OLDER)
        newer = pool.submit(api.upgrade, empty)
        wait_for_waiting(conn, TURN)
        older.execute("SET lock_timeout = '10s'")
        older.execute(
            "UPDATE outbox.schema_version SET version_num = version_num"
        )  # no deadlock: nothing is locked yet
        assert not newer.done()
    assert newer.result(LIMIT).current == "0002"
    api_again = pool.submit(api.upgrade, empty)
    assert api_again.result(LIMIT).is_current


def test_older_software_waits_for_an_upgrade(empty: str, conn: Connection, pool: ThreadPoolExecutor) -> None:
    api.upgrade(empty, "0001")
    with holding(empty, "LOCK TABLE outbox.inbox_parked IN ROW EXCLUSIVE MODE"):
        newer = pool.submit(api.upgrade, empty)
        wait_for_waiting(conn, UPGRADE_LOCKS)
        assert conn.execute(f"SELECT pg_try_advisory_lock({KEY})").fetchone() == (False,)
    assert newer.result(LIMIT).current == "0001"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lock", [OLDER, NEWER])
def test_an_upgrade_that_takes_too_long_is_named(empty: str, conn: Connection, lock: str) -> None:
    api.upgrade(empty, "0003")
    with psycopg.connect(empty, application_name="deploy of shop") as other:
        other.execute(lock)
        with pytest.raises(api.UpgradeBlockedError) as raised:
            api.upgrade(empty)
        assert f"session {other.info.backend_pid} of {other.info.user} (deploy of shop)" in str(raised.value)
        assert "nothing has changed. Run it again" in str(raised.value)
        other.rollback()
    assert schema.revision(conn) == "0003"
    assert api.upgrade(empty).current == "0003"


def test_the_command_reports_who_is_waited_for(
    empty: str, conn: Connection, pool: ThreadPoolExecutor
) -> None:
    api.upgrade(empty, "0003")
    with psycopg.connect(empty, application_name="deploy of shop") as other:
        other.execute(NEWER)
        ran = pool.submit(outbox, "db", "upgrade", OUTBOX_DSN=empty)
        conn.execute("SELECT pg_terminate_backend(%s)", [wait_for_waiting(conn, TURN)])
        assert ran.result(LIMIT).code == 1
        assert "Traceback" not in ran.result().err
    assert schema.revision(conn) == "0003"
