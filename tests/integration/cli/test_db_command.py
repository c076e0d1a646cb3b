"""`outbox db`: brings the schema, says what is wrong with a database, and leaves the host application alone."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from outbox_migrations import api
from outbox_relay.database import connections, schema
from outbox_relay.operations import database_checks
from tests.support.databases import with_database
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import connect, insert
from tests.support.servers import MakeDatabase

CATALOGUE = """
    SELECT c.relkind::text, c.relname::text, coalesce(pg_get_viewdef(c.oid), '') FROM pg_class c
    WHERE c.relnamespace = 'outbox'::regnamespace ORDER BY 1, 2
"""


@pytest.fixture
def empty(make_database: MakeDatabase) -> str:
    """A database without the outbox's schema."""
    return make_database(migrated=False)


@pytest.fixture
def durable(make_private_database: MakeDatabase) -> str:
    """A database without the outbox's schema, where fsync is on, as the check wants it."""
    return make_private_database(migrated=False)


def test_upgrade_says_from_where_to_where_and_what_partitions_it_made(empty: str) -> None:
    found = succeed("db", "upgrade", "--json", OUTBOX_DSN=empty).json
    assert (found["from"], found["to"]) == (None, schema.REVISION)
    assert found["partitions"] == found["partitions_added"] == 4
    again = succeed("db", "upgrade", OUTBOX_DSN=empty).out
    assert f"{schema.REVISION}, nothing to do" in again
    assert "0 made now" in again
    with connect(empty) as conn:
        insert(conn, "orders", "k", "b")


def test_many_upgrades_at_once_do_the_work_once(durable: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        before = [future.result().current for future in [pool.submit(api.upgrade, durable) for _ in range(4)]]
    assert sorted(before, key=str) == [schema.REVISION] * 3 + [None]
    assert succeed("db", "check", "--json", OUTBOX_DSN=durable).json["ok"]


def test_the_printed_ddl_makes_the_same_schema(durable: str, private_database: str) -> None:
    ran = succeed("db", "sql")
    with connect(durable) as conn, connect(private_database) as migrated:
        conn.execute(ran.out)
        assert schema.revision(conn) == schema.REVISION
        for each in (conn, migrated):  # what is in it decides how names are written
            each.execute("SET search_path = pg_catalog")
        assert conn.execute(CATALOGUE).fetchall() == migrated.execute(CATALOGUE).fetchall()
    assert succeed("db", "check", "--json", OUTBOX_DSN=durable).json["ok"]


def test_roles_and_grants_can_be_applied_again(database: str) -> None:
    script = succeed("db", "sql", "--roles").out
    with connect(database) as conn:
        conn.execute(script)
        conn.execute(script)


@pytest.mark.parametrize(
    ("arguments", "bootstrap"),
    [
        (["status"], False),
        (["message", "ls"], False),
        (["message", "show", "1"], False),
        (["topic", "ls"], False),
        (["topic", "create", "orders"], True),
        (["db", "partitions"], False),
    ],
)
def test_every_command_on_a_missing_schema_names_the_one_that_makes_it(
    empty: str, arguments: list[str], bootstrap: bool
) -> None:
    environment = {"OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"} if bootstrap else {}
    ran = outbox(*arguments, OUTBOX_DSN=empty, **environment)
    assert ran.code == 1
    assert "has no outbox schema" in ran.err
    assert "run: outbox db upgrade" in ran.err


@pytest.mark.parametrize(
    ("revision", "repair"), [("0000", "run: outbox db upgrade"), ("9999", "upgrade the software")]
)
def test_an_older_or_newer_schema_says_what_to_upgrade(
    private_database: str, revision: str, repair: str
) -> None:
    with connect(private_database) as conn:
        conn.execute(
            "UPDATE outbox.schema_version SET version_num = %(r)s, oldest_software = %(r)s", {"r": revision}
        )
        with pytest.raises(schema.SchemaError, match=revision):
            schema.require_current(conn)
    ran = outbox("status", OUTBOX_DSN=private_database)
    assert ran.code == 1
    assert repair in ran.err
    ran = outbox("db", "check", OUTBOX_DSN=private_database)
    assert ran.code == 1
    assert "FAILED" in ran.out
    ran = outbox("db", "upgrade", OUTBOX_DSN=private_database)
    assert ran.code == 1
    assert (repair if revision == "9999" else "does not know the outbox schema '0000'") in ran.err


def test_check_passes_on_a_fresh_database_and_exits_with_1_on_an_empty_one(
    private_database: str, durable: str
) -> None:
    good = succeed("db", "check", "--json", OUTBOX_DSN=private_database).json
    assert good["ok"]
    assert {check["name"] for check in good["checks"]} == {
        *(
            "server",
            "encoding",
            "primary",
            "fsync",
            "synchronous_commit",
            "schema",
            "partitions",
            "ids",
            "default partition",
            "owner",
            "functions",
            "row security",
            "roles",
        )
    }
    bad = outbox("db", "check", "--json", OUTBOX_DSN=durable)
    assert bad.code == 1
    failed = {check["name"]: check for check in bad.json["checks"] if check["level"] == "FAILED"}
    assert list(failed) == ["schema"]
    assert failed["schema"]["repair"] == "outbox db upgrade"


def test_asynchronous_commits_by_default_are_a_warning_with_the_repairing_statement(
    private_database: str,
) -> None:
    with connect(private_database) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET synchronous_commit = off")
    ran = succeed("db", "check", "--json", OUTBOX_DSN=private_database)
    (found,) = [check for check in ran.json["checks"] if check["level"] == "warning"]
    assert found["name"] == "synchronous_commit"
    with connect(private_database) as conn:
        conn.execute(found["repair"])
    ran = succeed("db", "check", "--json", OUTBOX_DSN=private_database)
    assert all(check["level"] == "ok" for check in ran.json["checks"])


def test_a_default_partition_fails_the_check(private_database: str) -> None:
    with connect(private_database) as conn:
        conn.execute("CREATE TABLE outbox.message_rest PARTITION OF outbox.message DEFAULT")
    ran = outbox("db", "check", OUTBOX_DSN=private_database)
    assert ran.code == 1
    assert "DETACH CONCURRENTLY" in ran.out


SOUND = {
    "version": 150000,
    "standby": False,
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_commit_source": "default",
    "read_only": "off",
}


@pytest.mark.parametrize(
    ("setting", "value", "level"),
    [
        ("version", 130012, "FAILED"),
        ("standby", True, "FAILED"),
        ("read_only", "on", "FAILED"),
        ("fsync", "off", "FAILED"),
        ("full_page_writes", "off", "warning"),
    ],
)
def test_a_server_that_cannot_keep_the_promises_is_told_apart(setting: str, value: Any, level: str) -> None:
    server = {**SOUND, setting: value}
    found = [
        database_checks._version(server["version"]),
        database_checks._primary(server),
        *database_checks._durability(server, "shop"),
    ]
    (bad,) = [check for check in found if check.level != "ok"]
    assert bad.level == level
    assert bad.repair


def test_missing_roles_are_a_warning_that_names_them(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_checks, "ROLES", ("outbox_reader", "outbox_nobody"))
    with connections.connect(database) as conn:
        (found,) = [check for check in database_checks.run(conn) if check.name == "roles"]
    assert (found.level, found.found) == ("warning", "missing: outbox_nobody")
    assert found.repair is not None
    assert "outbox db sql --roles" in found.repair


def test_missing_roles_are_left_to_the_upgrade_where_the_schema_is_missing(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_checks, "ROLES", ("outbox_reader", "outbox_nobody"))
    with connections.connect(make_database(migrated=False)) as conn:
        (found,) = [check for check in database_checks.run(conn) if check.name == "roles"]
    assert (found.repair or "").startswith("outbox db upgrade makes them")


def test_ddl_from_a_revision_that_does_not_exist_is_refused() -> None:
    ran = outbox("db", "sql", "--from", "0000")
    assert ran.code == 2
    assert "--from: this version does not know the outbox schema '0000'" in ran.err


@pytest.mark.parametrize("arguments", [["db", "check"], ["db", "upgrade"], ["status"], ["message", "ls"]])
def test_an_unreachable_database_is_named_without_its_password(arguments: list[str]) -> None:
    ran = outbox(*arguments, OUTBOX_DSN="postgresql://someone:s3cr3t@127.0.0.1:1/shop")
    assert ran.code == 1
    assert 'database "shop" at 127.0.0.1:1' in ran.err
    assert "s3cr3t" not in ran.out + ran.err


def test_a_missing_database_names_the_command_that_makes_it(database: str) -> None:
    ran = outbox("db", "upgrade", OUTBOX_DSN=with_database(database, "no_such_database"))
    assert ran.code == 1
    assert "createdb no_such_database" in ran.err


def test_a_user_who_may_not_create_schemas_gets_the_servers_reason(empty: str) -> None:
    with connect(empty) as conn:
        conn.execute(f"REVOKE CREATE ON DATABASE {conn.info.dbname} FROM PUBLIC")
        if conn.execute("SELECT FROM pg_roles WHERE rolname = 'outbox_reader'").fetchone() is None:
            conn.execute("CREATE ROLE outbox_reader NOLOGIN")
    ran = outbox(
        "db", "upgrade", OUTBOX_DSN=psycopg.conninfo.make_conninfo(empty, options="-c role=outbox_reader")
    )
    assert ran.code == 1
    assert "permission denied" in ran.err
    assert "42501" in ran.err
    with connect(empty) as conn:
        assert schema.revision(conn) is None


HOST_ENV = """
from alembic import context
from sqlalchemy import MetaData
context.configure(connection=context.config.attributes["connection"], target_metadata=MetaData())
with context.begin_transaction():
    context.run_migrations()
"""
HOST_REVISION = '''
"""The host's own table."""
from alembic import op
revision = "abc"
down_revision = None
def upgrade():
    op.execute("CREATE TABLE customer (id bigint PRIMARY KEY)")
def downgrade():
    op.execute("DROP TABLE customer")
'''


def without_outbox(name: str | None, type_: str, parents: Any) -> bool:
    """The filter of docs/reference/cli.md."""
    return not (type_ == "schema" and name == "outbox")


def compare(engine: sa.Engine, **options: Any) -> list[Any]:
    """What the host's autogenerate would write, with include_schemas and no tables of its own."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
        return list(compare_metadata(context, sa.MetaData()))


def test_a_host_applications_alembic_is_left_alone(durable: str, tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(HOST_ENV)
    (tmp_path / "versions" / "abc.py").write_text(HOST_REVISION)
    host = Config()
    host.set_main_option("script_location", str(tmp_path))
    host.set_main_option("path_separator", "os")
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(durable), poolclass=sa.NullPool
    )

    def run_host(step: Any, revision: str) -> None:
        with engine.begin() as connection:
            host.attributes["connection"] = connection
            step(host, revision)

    run_host(command.upgrade, "head")
    succeed("db", "upgrade", OUTBOX_DSN=durable)
    with connect(durable) as conn:
        assert conn.execute("SELECT version_num FROM public.alembic_version").fetchall() == [("abc",)]
        assert conn.execute("SELECT version_num FROM outbox.schema_version").fetchall() == [
            (schema.REVISION,)
        ]
    filtered = compare(engine, include_name=without_outbox)
    assert [step for step, *_ in filtered] == ["remove_table"]
    assert "customer" in str(filtered)
    with warnings.catch_warnings():
        # Without the filter SQLAlchemy reads our tables too, and knows no xid8.
        warnings.simplefilter("ignore", sa.exc.SAWarning)
        assert "outbox" in str(compare(engine))
    run_host(command.downgrade, "base")
    with connect(durable) as conn:
        assert schema.revision(conn) == schema.REVISION
    assert succeed("db", "check", "--json", OUTBOX_DSN=durable).json["ok"]
