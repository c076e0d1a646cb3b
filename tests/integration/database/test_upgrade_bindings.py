"""An upgrade binds nothing that strangers made: no function, operator or type outside of "outbox" and "pg_catalog".

What a stranger does before an upgrade, in a database in whose "public" it may create: it doubles each function and
operator that a migration names. Until revision 0003 the names in functions, defaults, checks, indexes and views meant
its doubles, and whoever sent, decided or owned the outbox ran them. Revision 0004 mends a database that has such names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine

from outbox import Message, Outbox
from outbox_migrations import api, sql_files
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect
from tests.support.strangers import Stranger, upgrade_as_before

FOREIGN = """
    WITH RECURSIVE ours AS (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'outbox'::regnamespace
        UNION
        SELECT d.classid, d.objid FROM ours o
        JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid AND d.deptype IN ('a', 'i', 'P', 'S')
    )
    SELECT DISTINCT pg_describe_object(o.classid, o.objid, 0), i.type || ' ' || i.identity
    FROM ours o
    JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.objid
    CROSS JOIN LATERAL pg_identify_object(d.refclassid, d.refobjid, 0) i
    WHERE i.schema NOT IN ('outbox', 'pg_catalog', 'pg_toast') ORDER BY 1, 2
"""
DEFINITIONS = """
    SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid) FROM pg_proc p
    WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f'
    UNION ALL SELECT c.relname::text, pg_get_viewdef(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v'
    UNION ALL SELECT f.adrelid::regclass || '.' || f.adnum, pg_get_expr(f.adbin, f.adrelid) FROM pg_attrdef f
    JOIN pg_class c ON c.oid = f.adrelid WHERE c.relnamespace = 'outbox'::regnamespace
    UNION ALL SELECT k.conrelid::regclass || '.' || k.conname, replace(pg_get_constraintdef(k.oid), ' NOT VALID', '')
    FROM pg_constraint k WHERE k.connamespace = 'outbox'::regnamespace AND k.contype = 'c'
    UNION ALL SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i
    JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'outbox'::regnamespace
    UNION ALL SELECT t.tgrelid::regclass || '.' || t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t
    JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal
    ORDER BY 1, 2
"""
IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = %s"


@pytest.fixture
def conn(empty: str) -> Iterator[Connection]:
    """A session that prints each name with its schema."""
    with connect(empty) as conn:
        conn.execute("SET search_path = pg_catalog")
        yield conn


def definitions(dsn: str) -> list[tuple[str, str]]:
    """All that an upgrade makes of expressions and code."""
    with connect(dsn) as conn:
        conn.execute("SET search_path = pg_catalog")
        return conn.execute(DEFINITIONS).fetchall()


def upgrade_by_asyncpg(dsn: str) -> None:
    async def run() -> None:
        engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
        async with engine.begin() as connection:
            await connection.run_sync(api.upgrade_in)
        await engine.dispose()

    asyncio.run(run())


def upgrade_by_sqlalchemy(dsn: str) -> None:
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        api.upgrade_in(connection)
    engine.dispose()


def apply_printed(dsn: str) -> None:
    with connect(dsn) as conn:
        conn.execute(succeed("db", "sql").out)
        conn.execute(succeed("db", "sql", "--roles").out)


def apply_djangos(dsn: str) -> None:
    """What `manage.py sqlmigrate` prints for each revision, in a transaction of its own each."""
    with connect(dsn) as conn:
        for before, revision in ((None, "0001"), ("0001", "0002"), ("0002", "0003"), ("0003", "0004")):
            conn.execute(api.as_transaction(api.scripts(before, revision)))


WAYS: dict[str, Callable[[str], object]] = {
    "upgrade": api.upgrade,
    "sqlalchemy": upgrade_by_sqlalchemy,
    "asyncpg": upgrade_by_asyncpg,
    "printed": apply_printed,
    "printed by revision": apply_djangos,
}


@pytest.mark.parametrize("way", WAYS)
def test_an_upgrade_binds_nothing_outside_of_its_schema(
    empty: str, evil: Stranger, conn: Connection, database: str, way: str
) -> None:
    evil.double_everything()
    assert conn.execute(
        "SELECT count(*) > 2000 FROM pg_operator WHERE oprnamespace = 'public'::regnamespace"
    ).fetchone() == (True,)
    assert conn.execute(
        "SELECT count(*) > 2000 FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ).fetchone() == (True,)
    WAYS[way](empty)
    assert conn.execute(FOREIGN).fetchall() == []
    assert definitions(empty) == definitions(database)


@pytest.mark.parametrize("way", ["upgrade", "printed"])
def test_a_database_that_has_bound_a_strangers_is_mended(
    empty: str, evil: Stranger, conn: Connection, database: str, way: str
) -> None:
    evil.lay_traps()
    upgrade_as_before(empty)
    found = {name for name, _ in conn.execute(FOREIGN)}
    assert {
        "function outbox.actor()",
        "function outbox.new_message_id(bigint)",
        "default value for column position of table outbox.message",
        "default value for column id of table outbox.message_p000000000000001",
        "constraint publication_is_complete on table outbox.publication",
        "constraint inbox_parked_headers_are_pairs on table outbox.inbox_parked",
        "index outbox.message_index_keys",
        "rule _RETURN on view outbox.message_status",
    } <= found
    with connect(empty) as sender:
        sender.execute("INSERT INTO outbox.message (topic, index_keys) VALUES ('t', '{one}')")
    if way == "upgrade":
        assert api.upgrade(empty).current == "0003"
    else:
        conn.execute(succeed("db", "sql", "--from", "0003").out)
    assert conn.execute(FOREIGN).fetchall() == []
    assert definitions(empty) == definitions(database)
    with connect(empty) as sender, sender.transaction():
        Outbox(producer_group="orders").prepare(sender, Message("t", body=b"half"))
        sender.execute("SELECT outbox.ensure_partitions(7), outbox.add_partition(1000)")
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (2,)
    assert conn.execute("SELECT count(*) FROM outbox.message WHERE index_keys @> '{one}'").fetchone() == (1,)
    assert conn.execute(FOREIGN).fetchall() == [], "nor has a partition that was added"


def test_a_mended_database_locks_no_table_again(empty: str, conn: Connection) -> None:
    """Nothing is bound anew where nothing is foreign: readers of every table go on."""
    upgrade_as_before(empty)
    with psycopg.connect(empty) as reader:
        for view in ("message_status", "partition"):
            reader.execute(f"LOCK TABLE outbox.{view} IN ACCESS SHARE MODE")
        reader.execute(
            "SELECT FROM outbox.message, outbox.publication, outbox.inbox_parked, outbox.topic LIMIT 1"
        )
        with psycopg.connect(empty) as mender, mender.transaction():
            mender.execute("SET LOCAL lock_timeout = '10s'; SET LOCAL search_path = pg_catalog, pg_temp")
            for name in ("0004_rebinding.sql", "0004_rebinding_tables.sql"):
                mender.execute(sql_files.text(name).encode())
    assert conn.execute(FOREIGN).fetchall() == []


@pytest.mark.parametrize("start", ["nothing", "0003"])
def test_no_login_becomes_a_superuser_by_an_upgrade(
    empty: str, evil: Stranger, conn: Connection, start: str
) -> None:
    evil.lay_traps()
    if start == "0003":
        upgrade_as_before(empty)
    conn.execute(f"ALTER ROLE {evil.name} NOSUPERUSER")  # what bound its functions may have run them
    api.upgrade(empty)
    conn.execute(f"GRANT outbox_producer TO {evil.name}")
    evil.run("INSERT INTO outbox.message (topic, state, producer_group) VALUES ('t', 'UNKNOWN', 'g')")
    evil.run("INSERT INTO outbox.message (topic) VALUES ('t')")
    conn.execute("INSERT INTO outbox.message (topic, index_keys) VALUES ('t', '{a}')")
    conn.execute("ANALYZE")
    conn.execute("SELECT * FROM outbox.message_status")
    assert conn.execute(IS_SUPERUSER, [evil.name]).fetchone() == (False,)
    assert succeed("db", "sql", "--roles").out  # as a superuser applies it
    conn.execute("SET search_path = public")
    conn.execute(succeed("db", "sql", "--roles").out)
    assert conn.execute(IS_SUPERUSER, [evil.name]).fetchone() == (False,)


def test_db_check_names_what_a_stranger_has_bound(empty: str, evil: Stranger) -> None:
    evil.lay_traps()
    upgrade_as_before(empty)
    with connect(empty) as conn:  # its revision passes the check of the schema, so that the others are made
        conn.execute("UPDATE outbox.schema_version SET version_num = '0004'")
    ran = outbox("db", "check", "--json", OUTBOX_DSN=empty)
    assert ran.code == 1
    [check] = [check for check in ran.json["checks"] if check["name"] == "functions"]
    assert check["level"] == "FAILED"
    assert f"calls function public.cardinality(pg_catalog.text[]) of {evil.name}" in check["found"]
    with connect(empty) as conn:
        conn.execute("UPDATE outbox.schema_version SET version_num = '0003'")
    api.upgrade(empty)
    checks = outbox("db", "check", "--json", OUTBOX_DSN=empty).json["checks"]
    assert [check["level"] for check in checks if check["name"] == "functions"] == ["ok"]


def test_the_callers_transaction_has_its_settings_again(empty: str) -> None:
    names = (
        "search_path",
        "row_security",
        "standard_conforming_strings",
        "lock_timeout",
        "client_encoding",
        "role",
    )
    with psycopg.connect(empty, row_factory=dict_row) as conn:
        conn.execute(
            "SET search_path = \"a 'b\\\", public; SET standard_conforming_strings = off; SET lock_timeout = '7s'"
        )
        conn.execute("SET client_encoding = 'LATIN1'")
        before = [conn.execute(f"SHOW {name}").fetchone() for name in names]
        assert api.upgrade_in(conn, "0003").current is None
        assert [conn.execute(f"SHOW {name}").fetchone() for name in names] == before
        assert api.upgrade_in(conn).current == "0003"
        assert [conn.execute(f"SHOW {name}").fetchone() for name in names] == before
        assert api.status_in(conn).is_current
        assert [conn.execute(f"SHOW {name}").fetchone() for name in names] == before


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
def test_an_upgrade_does_not_depend_on_the_encoding_of_the_client(
    empty: str, database: str, encoding: str
) -> None:
    with psycopg.connect(empty, client_encoding=encoding) as conn:
        api.upgrade_in(conn)
    assert definitions(empty) == definitions(database)
