"""An upgrade refuses what was there and is not the upgrader's, by name, with the statement that repairs it.

Whoever may create in a database can make a schema "outbox" before the first upgrade, and would own it afterwards: drop
its tables, replace its guards. Another program may have a schema of this name. Roles belong to the whole cluster:
another database's upgrade has made them, or somebody else, who can log in with one.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox_migrations import api, sql_files
from outbox_relay.database import connections, schema
from outbox_relay.operations import database_checks
from tests.support.databases import with_database
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect
from tests.support.servers import MakeDatabase

OBJECTS = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('outbox')"
OWNERS = """
    SELECT DISTINCT pg_get_userbyid(owner) FROM (
        SELECT nspowner AS owner FROM pg_namespace WHERE nspname = 'outbox'
        UNION ALL SELECT relowner FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
        UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
        UNION ALL SELECT typowner FROM pg_type WHERE typnamespace = 'outbox'::regnamespace) o
"""


@pytest.fixture
def empty(make_database: MakeDatabase, database: str) -> str:
    """A database without the outbox's schema, in a cluster that has its roles."""
    assert database
    return make_database(migrated=False)


@pytest.fixture
def admin(empty: str) -> Iterator[Connection]:
    with connect(empty) as conn:
        yield conn


@contextmanager
def login(admin: Connection, dsn: str, attributes: str = "") -> Iterator[tuple[str, str]]:
    """A login's name and DSN; it is dropped with what it owns in this database."""
    name, password = f"test_{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' {attributes}")
    try:
        yield name, make_conninfo(dsn, user=name, password=password)
    finally:
        admin.execute(f"DROP OWNED BY {name} CASCADE")
        admin.execute(f"DROP ROLE {name}")


def refused(dsn: str) -> str:
    """What the command writes, having changed nothing; the printed DDL is refused with the same words."""
    with connect(dsn) as conn:
        before = conn.execute(OBJECTS).fetchone()
        ran = outbox("db", "upgrade", OUTBOX_DSN=dsn)
        assert ran.code == 1
        assert "Traceback" not in ran.err
        with pytest.raises(psycopg.Error) as raised:
            conn.execute(succeed("db", "sql").out.encode())
        first = (raised.value.diag.message_primary or "").splitlines()[0]
        assert first in ran.err
        conn.execute("ROLLBACK")
        assert conn.execute(OBJECTS).fetchone() == before
    return ran.err


def repair_in(text: str) -> str:
    """The statement that a refusal names."""
    [found] = re.findall(r"^as a superuser: (ALTER .+)$", text, re.MULTILINE)
    return str(found)


def test_a_strangers_schema_is_refused_until_it_is_given_to_the_upgrader(
    empty: str, admin: Connection
) -> None:
    with login(admin, empty) as (evil, dsn):
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {evil}")
        with connect(dsn) as conn:
            conn.execute("CREATE SCHEMA outbox")
        text = refused(empty)
        assert (
            f"was there and belongs to {evil}, who could drop all that {admin.info.user} makes in it" in text
        )
        admin.execute(repair_in(text))
        succeed("db", "upgrade", OUTBOX_DSN=empty)
        with connect(dsn) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("DROP TABLE outbox.topic CASCADE")


@pytest.mark.parametrize("row", ["", "INSERT INTO outbox.schema_version VALUES ('0003')"])
def test_a_strangers_version_table_is_refused(empty: str, admin: Connection, row: str) -> None:
    with login(admin, empty) as (evil, dsn):
        admin.execute(f"CREATE SCHEMA outbox; GRANT ALL ON SCHEMA outbox TO {evil}")
        with connect(dsn) as conn:
            conn.execute(f"CREATE TABLE outbox.schema_version (version_num varchar(32)); {row}")
        ran = outbox("db", "upgrade", OUTBOX_DSN=empty)
        assert ran.code == 1
        assert (
            "belongs to" if row else f"the outbox of database {admin.info.dbname} belongs to {evil}"
        ) in ran.err
        assert admin.execute(OBJECTS).fetchone() == (1,)


def test_something_of_others_in_the_schema_is_refused(empty: str, admin: Connection) -> None:
    api.upgrade(empty, "0003")
    with login(admin, empty) as (evil, dsn):
        admin.execute(f"GRANT CREATE, USAGE ON SCHEMA outbox TO {evil}")
        with connect(dsn) as conn:
            conn.execute(
                "CREATE FUNCTION outbox.lane_of(text, integer, text, bigint) RETURNS smallint RETURN 0::smallint"
            )
        ran = outbox("db", "upgrade", OUTBOX_DSN=empty)
        assert ran.code == 1
        assert f"function outbox.lane_of(text,integer,text,bigint) of {evil}" in ran.err
        assert "drop them, or give each to" in ran.err
        assert schema.revision(admin) == "0003"
        checks = outbox("db", "check", "--json", OUTBOX_DSN=empty).json["checks"]
        assert [check["level"] for check in checks if check["name"] == "schema"] == ["FAILED"]
        admin.execute("DROP FUNCTION outbox.lane_of(text, integer, text, bigint)")
        api.upgrade(empty)
        [owner] = [check for check in database_checks.run(admin) if check.name == "owner"]
        assert (owner.level, f"{evil} may add to it" in owner.found) == ("FAILED", True)
        admin.execute(f"REVOKE CREATE ON SCHEMA outbox FROM {evil}")
        [owner] = [check for check in database_checks.run(admin) if check.name == "owner"]
        assert owner.level == "ok"


@pytest.mark.parametrize("tables", ["message (id integer)", "schema_version (version integer)"])
def test_a_schema_of_another_program_is_recognised(empty: str, admin: Connection, tables: str) -> None:
    admin.execute(f"CREATE SCHEMA outbox; CREATE TABLE outbox.{tables}")
    what = f"table outbox.{tables.partition(' ')[0]}"
    text = refused(empty)
    assert "belongs to another program: it has no table schema_version of this one" in text
    assert what in text
    assert "ALTER SCHEMA outbox RENAME TO" in text
    for command in (["status"], ["message", "ls"], ["db", "partitions"]):
        ran = outbox(*command, OUTBOX_DSN=empty)
        assert ran.code == 1
        assert "of another program" in ran.err
        assert what in ran.err
    assert "of another program" in outbox("db", "check", OUTBOX_DSN=empty).out
    assert api.status(empty).current is None
    admin.execute("ALTER SCHEMA outbox RENAME TO mailbox")
    succeed("db", "upgrade", OUTBOX_DSN=empty)


def test_a_schema_that_was_made_for_the_upgrader_is_used(empty: str, admin: Connection) -> None:
    """By an administrator, for an owner who may not create schemas."""
    with login(admin, empty) as (owner, dsn):
        admin.execute(f"REVOKE CREATE ON DATABASE {admin.info.dbname} FROM PUBLIC")
        admin.execute(f"CREATE SCHEMA outbox AUTHORIZATION {owner}")
        admin.execute(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA outbox GRANT SELECT ON TABLES TO outbox_reader"
        )
        text = refused(empty)
        assert f"belongs to {owner}" in text  # an administrator's upgrade is another owner's
        ran = succeed("db", "upgrade", "--json", OUTBOX_DSN=dsn).json
        assert (ran["from"], ran["owner"]) == (None, owner)
        assert admin.execute(OWNERS).fetchall() == [(owner,)]


@pytest.mark.parametrize("way", ["upgrade", "printed"])
def test_what_a_superuser_adds_belongs_to_the_schemas_owner(empty: str, admin: Connection, way: str) -> None:
    with login(admin, empty) as (owner, dsn):
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {owner}")
        api.upgrade(dsn, "0002")
        if way == "upgrade":
            assert succeed("db", "upgrade", "--json", OUTBOX_DSN=empty).json["owner"] == owner
        else:
            admin.execute(succeed("db", "sql", "--from", "0002").out)
        assert admin.execute(OWNERS).fetchall() == [(owner,)]
        assert admin.execute("SELECT current_user::text").fetchone() == (admin.info.user,)


def test_a_login_that_may_not_act_as_the_owner_is_told_to_run_it_as_the_owner(
    empty: str, admin: Connection
) -> None:
    api.upgrade(empty, "0003")
    with login(admin, empty, "IN ROLE outbox_reader") as (_, dsn):
        ran = outbox("db", "upgrade", OUTBOX_DSN=dsn)
        assert ran.code == 1
        assert f"belongs to {admin.info.user}" in ran.err
        assert f"PGOPTIONS='-c role={admin.info.user}' outbox db upgrade" in ran.err
    api.upgrade(empty)
    with login(admin, empty, "IN ROLE outbox_reader") as (_, dsn):
        assert api.upgrade(dsn).is_current, "nothing is to be done, so nothing is refused"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_an_encoding_other_than_utf8_is_refused(empty: str, admin: Connection, encoding: str) -> None:
    name = f"test_{uuid.uuid4().hex[:16]}"
    admin.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        dsn = with_database(empty, name)
        text = refused(dsn)
        assert f"database {name} has the encoding {encoding}; expected UTF8" in text
        assert "TEMPLATE template0 ENCODING 'UTF8'" in text
        ran = outbox("db", "check", "--json", OUTBOX_DSN=dsn)
        assert ran.code == 1
        [check] = [check for check in ran.json["checks"] if check["name"] == "encoding"]
        assert check["level"] == "FAILED"
        assert encoding in check["found"].split(";")[0]
    finally:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_role_that_may_log_in_is_refused_before_the_first_upgrade(
    make_private_database: MakeDatabase,
) -> None:
    dsn = make_private_database(migrated=False)
    with connect(dsn) as admin:
        if admin.execute("SELECT FROM pg_roles WHERE rolname = 'outbox_operator'").fetchone() is None:
            admin.execute("CREATE ROLE outbox_operator")
        admin.execute("ALTER ROLE outbox_operator LOGIN CREATEROLE")
        try:
            text = refused(dsn)
            assert "role outbox_operator was there, and may do more than the outbox grants it" in text
            assert "LOGIN, CREATEROLE" in text
            admin.execute(repair_in(text))
            succeed("db", "upgrade", OUTBOX_DSN=dsn)
            admin.execute("ALTER ROLE outbox_operator LOGIN")  # of one's own accord
            with admin.transaction():
                admin.execute("UPDATE outbox.schema_version SET version_num = version_num")
            succeed("db", "upgrade", OUTBOX_DSN=dsn)
        finally:
            admin.execute("ALTER ROLE outbox_operator NOLOGIN NOCREATEROLE")


def test_row_level_security_that_the_outbox_did_not_set_is_named(database: str) -> None:
    with connections.connect(database) as conn:
        conn.execute("ALTER TABLE outbox.message ENABLE ROW LEVEL SECURITY")
        [check] = [check for check in database_checks.run(conn) if check.name == "row security"]
        assert (check.level, "outbox.message" in check.found) == ("FAILED", True)
        conn.execute(check.repair or "")
        [check] = [check for check in database_checks.run(conn) if check.name == "row security"]
        assert check.level == "ok"


def test_the_check_knows_each_role_that_an_upgrade_makes() -> None:
    made = re.findall(r"'(outbox_\w+)'", sql_files.text("0001_roles.sql"))
    assert set(database_checks.ROLES) == set(made)
    assert set(database_checks.ROLES) == set(re.findall(r"'(outbox_\w+)'", sql_files.text("refusal.sql")))


def test_a_second_owner_in_the_cluster_is_told_what_to_grant(empty: str, admin: Connection) -> None:
    """Since PostgreSQL 16 only who made a role may grant it, the first owner; before, everybody with CREATEROLE."""
    with ExitStack() as stack:
        owner, dsn = stack.enter_context(login(admin, empty, "CREATEROLE"))
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {owner}")
        ran = succeed("db", "upgrade", OUTBOX_DSN=dsn)
        relay, _ = stack.enter_context(login(admin, empty))
        if admin.info.server_version < 160000:
            assert "may not grant" not in ran.out
        else:
            assert f"{owner} may not grant outbox_checker, " in ran.out
            [grant] = re.findall(r"(GRANT .* WITH ADMIN OPTION)$", ran.out, re.MULTILINE)
            [check] = [check for check in database_checks.run(admin) if check.name == "roles"]
            assert check.level == "warning"
            assert grant in (check.repair or "")
            admin.execute(grant)
        assert "may not grant" not in succeed("db", "upgrade", OUTBOX_DSN=dsn).out
        with connect(dsn) as conn:
            if admin.info.server_version >= 160000:
                conn.execute(f"GRANT outbox_relay TO {relay}")
        roles = ", ".join(database_checks.ROLES)
        if admin.info.server_version >= 160000:
            admin.execute(f"REVOKE {roles} FROM {owner} CASCADE")
