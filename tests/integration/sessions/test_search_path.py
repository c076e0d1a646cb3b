"""Nothing that the library runs on a caller's connection finds a function or an operator of a stranger.

A database has, in `public`, an operator for all pairs of types for which PostgreSQL has none of exactly these types: it
is preferred to PostgreSQL's own of other types. Each statement is made the body of a function, which is bound as the
statement would be, under the default `search_path`; what it depends on is in the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import psycopg
import pytest

from outbox.operations.rows import load_rows
from outbox.statements import load
from tests.support import hostile
from tests.support.servers import MakeDatabase

TYPES = """
    text varchar name smallint integer bigint real float8 numeric boolean bytea uuid xid xid8 oid json jsonb interval
    timestamptz timestamp date regclass bit pg_lsn text[] integer[] bigint[] bytea[] uuid[] int8range
"""
OPERATORS = """
    DO $$
    DECLARE
        a record;
    BEGIN
        FOR a IN SELECT l::regtype AS l, r::regtype AS r
                 FROM unnest(%(types)s::text[]) l, unnest(%(types)s::text[]) r LOOP
            EXECUTE format('CREATE FUNCTION public.compares(%%1$s, %%2$s) RETURNS boolean LANGUAGE sql AS '
                           '''SELECT NULL::boolean''', a.l, a.r);
            EXECUTE format('CREATE FUNCTION public.reckons(%%1$s, %%2$s) RETURNS %%1$s LANGUAGE sql AS '
                           '''SELECT NULL::%%1$s''', a.l, a.r);
        END LOOP;
        FOR a IN SELECT o AS name, l::regtype AS l, r::regtype AS r
                 FROM unnest(%(types)s::text[]) l, unnest(%(types)s::text[]) r, unnest(%(operators)s::text[]) o
                 WHERE NOT EXISTS (SELECT FROM pg_operator p WHERE p.oprname = o AND p.oprleft = l::regtype
                                   AND p.oprright = r::regtype AND p.oprnamespace = 'pg_catalog'::regnamespace) LOOP
            EXECUTE format('CREATE OPERATOR public.%%s (leftarg = %%s, rightarg = %%s, function = public.%%s)',
                           a.name, a.l, a.r, CASE WHEN a.name IN ('=', '<>', '<', '>', '<=', '>=', '@>', '<@', '&&')
                           THEN 'compares' ELSE 'reckons' END);
        END LOOP;
    END $$;
"""
STRANGERS = """
    SELECT DISTINCT pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0)
    FROM pg_depend d
        LEFT JOIN pg_proc f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid
        LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
    WHERE d.classid = 'pg_proc'::regclass AND d.objid = 'probed.probe'::regproc
        AND coalesce(f.pronamespace, o.oprnamespace) = 'public'::regnamespace
"""
NO_QUERY = ("SAVEPOINT", "ROLLBACK", "RELEASE", "SET CONSTRAINTS")
RANGE = "id >= 0 AND id < 16777216"
"""As outbox/operations/ranges.py writes it."""


def statements() -> Iterator[tuple[str, str]]:
    for each in resources.files("outbox").joinpath("sql").iterdir():
        if each.name.endswith(".sql") and each.name != "sessions.sql":
            found = load_rows(each.name) if "{columns}" in each.read_text("utf-8") else load(each.name)
            for name, text in found.items():
                if not text.startswith(NO_QUERY):
                    yield f"{each.name}: {name}", text.replace("{range}", RANGE)


STATEMENTS = dict(statements())


@pytest.fixture(scope="module")
def conn(_shared_databases: object) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    make: MakeDatabase = _shared_databases.make  # type: ignore[attr-defined]
    symbols = {each for text in STATEMENTS.values() for each in re.findall(r"[-+*/<>=~!@#%^&|]+", text)}
    with psycopg.connect(make(), autocommit=True, prepare_threshold=None) as conn:
        conn.execute("SET search_path = pg_catalog")
        conn.execute(
            psycopg.ClientCursor(conn).mogrify(
                OPERATORS, {"types": TYPES.split(), "operators": sorted(symbols - {"=>"})}
            )
        )
        conn.execute(hostile.MORE_DOUBLES)
        conn.execute("RESET search_path")
        conn.execute("CREATE SCHEMA probed")
        yield conn


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_of_the_library_calls_nothing_of_strangers(
    name: str, conn: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert _strangers(conn, STATEMENTS[name]) == []


@pytest.mark.parametrize("text", ["SELECT 1::bigint * 1.0::float8", "SELECT concat('a'::text, 'b'::text)"])
def test_a_strangers_operator_or_function_is_found(
    text: str, conn: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert _strangers(conn, text)


def _strangers(conn: psycopg.Connection[tuple[object, ...]], text: str) -> list[object]:
    conn.execute("DEALLOCATE ALL")
    conn.execute("DROP FUNCTION IF EXISTS probed.probe")
    conn.execute(f"PREPARE probe AS {text}".encode())
    row = conn.execute("SELECT parameter_types::text[] FROM pg_prepared_statements").fetchone()
    assert row is not None
    types = ", ".join(row[0])  # type: ignore[arg-type]
    body = f"CREATE FUNCTION probed.probe({types}) RETURNS void LANGUAGE sql BEGIN ATOMIC {text}; END"
    conn.execute(body.encode())
    with conn.transaction():
        conn.execute("SET LOCAL search_path = pg_catalog")
        return [each for (each,) in conn.execute(STRANGERS).fetchall()]
