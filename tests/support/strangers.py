"""A login without rights, which may create in "public", as everybody could before PostgreSQL 15; what it makes there.

Its functions and operators have the names of PostgreSQL's own, and the exact types of calls that PostgreSQL's have to
convert for: where "public" is in the search_path, they go first.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, resources

import psycopg
from psycopg.conninfo import make_conninfo

from outbox_migrations import sql_files

VERSION_TABLE = """
    CREATE SCHEMA outbox;
    CREATE TABLE outbox.schema_version
        (version_num varchar(32) NOT NULL, CONSTRAINT schema_version_pkc PRIMARY KEY (version_num))
"""
MODULES = ("v0001_schema", "v0002_dead_letter_index", "v0003_admission")
TYPES = [
    *(
        "text",
        "text[]",
        "name",
        "smallint",
        "integer",
        "bigint",
        "double precision",
        "numeric",
        "boolean",
        "bytea",
    ),
    *("jsonb", "uuid", "timestamptz", "interval", "xid8", "regclass", "bigint[]", "integer[]"),
]
OPERATORS = [
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "||",
    "+",
    "-",
    "*",
    "&",
    "|",
    "<<",
    ">>",
    "~",
    "!~",
    "->",
    "->>",
    "@>",
    "?",
]
FUNCTIONS = """
DO $make$
DECLARE
    f record;
    stand_in text;
    types text[];
    made text;
BEGIN
    FOR f IN SELECT p.proname, p.proargtypes::oid[] AS args FROM pg_catalog.pg_proc p
             WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname::text = ANY ({names})
    LOOP
        FOREACH stand_in IN ARRAY ARRAY['text', 'bigint'] LOOP
            SELECT array_agg(CASE WHEN format_type(t, NULL) IN ('anyarray', 'anycompatiblearray') THEN stand_in || '[]'
                                  WHEN format_type(t, NULL) IN ('"any"', 'anyelement', 'anycompatible') THEN stand_in
                                  ELSE format_type(t, NULL) END ORDER BY n)
            INTO types FROM unnest(f.args) WITH ORDINALITY AS a (t, n);
            FOR extra IN 0 .. 2 LOOP  -- for VARIADIC
                FOR place IN 1 .. coalesce(cardinality(types), 0) LOOP
                    FOREACH made IN ARRAY {types} || types[place] LOOP
                        made := format('public.%I(%s)', f.proname, array_to_string(types[:place - 1] || made
                            || types[place + 1:] || array_fill(stand_in, ARRAY[extra]), ', '));
                        IF to_regprocedure(made) IS NULL THEN
                            BEGIN
                                EXECUTE format('CREATE FUNCTION %s RETURNS text LANGUAGE plpgsql IMMUTABLE AS '
                                               '''BEGIN RAISE EXCEPTION ''''a stranger''''; END''', made);
                            EXCEPTION WHEN OTHERS THEN NULL;  -- a type that no function may take
                            END;
                        END IF;
                    END LOOP;
                END LOOP;
                EXIT WHEN f.proname NOT IN ('concat', 'concat_ws', 'format', 'num_nulls', 'num_nonnulls',
                                            'jsonb_build_object');
            END LOOP;
        END LOOP;
    END LOOP;
END $make$
"""
OPERATIONS = """
DO $make$
DECLARE
    lhs text;
    rhs text;
    sign text;
BEGIN
    FOREACH lhs IN ARRAY {types} LOOP
        FOREACH rhs IN ARRAY {types} LOOP
            EXECUTE format('CREATE FUNCTION public.stranger(%s, %s) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS '
                           '''BEGIN RAISE EXCEPTION ''''a stranger''''; END''', lhs, rhs);
            FOREACH sign IN ARRAY {signs} LOOP
                IF to_regoperator(format('pg_catalog.%s(%s, %s)', sign, lhs, rhs)) IS NULL THEN
                    EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, '
                                   'FUNCTION = public.stranger)', sign, lhs, rhs);
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
END $make$
"""
REMOVAL = """
DO $remove$
DECLARE
    f record;
    removed integer := 0;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.proowner = '{name}'::regrole LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', f.name);
        removed := removed + 1;
        IF removed % 20 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END $remove$
"""
"""Drops functions, each with its operators, by and by: DROP OWNED would hold 12,000 locks at once, for most of which a
server has room, and fail others' tests."""
CATCHING = """
    CREATE FUNCTION public.catch() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
            EXECUTE 'ALTER ROLE {name} SUPERUSER';
        END IF;
    END $$;
    CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
        PERFORM public.catch(); RETURN pg_catalog.nextval($1::pg_catalog.regclass); END $$;
    CREATE FUNCTION public.currval(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
        PERFORM public.catch(); RETURN pg_catalog.currval($1::pg_catalog.regclass); END $$;
    CREATE FUNCTION public.concat(text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        PERFORM public.catch(); RETURN pg_catalog.concat($1, $2, $3); END $$;
    CREATE FUNCTION public.times(float8, bigint) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN
        PERFORM public.catch(); RETURN $1 OPERATOR(pg_catalog.*) $2::float8; END $$;
    CREATE OPERATOR public.* (LEFTARG = float8, RIGHTARG = bigint, FUNCTION = public.times);
    CREATE FUNCTION public.array_position(bigint[], bigint) RETURNS integer IMMUTABLE
        RETURN pg_catalog.array_position($1, $2);
    CREATE FUNCTION public.cardinality(bigint[]) RETURNS integer IMMUTABLE RETURN pg_catalog.cardinality($1);
    CREATE FUNCTION public.cardinality(integer[]) RETURNS integer IMMUTABLE RETURN pg_catalog.cardinality($1);
    CREATE FUNCTION public.cardinality(text[]) RETURNS integer IMMUTABLE RETURN pg_catalog.cardinality($1);
    CREATE FUNCTION public.differ(text[], text[]) RETURNS boolean IMMUTABLE RETURN $1 OPERATOR(pg_catalog.<>) $2;
    CREATE OPERATOR public.<> (LEFTARG = text[], RIGHTARG = text[], FUNCTION = public.differ);
"""
"""Works as PostgreSQL's own does, so that an upgrade goes through; a superuser who runs it makes its owner one."""


class Stranger:
    """A login that may connect, and create in "public"."""

    def __init__(self, dsn: str, name: str, password: str) -> None:
        self.name = name
        self.dsn = make_conninfo(dsn, user=name, password=password)

    def run(self, statement: str) -> None:
        """Run a statement of this login's."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("SET search_path = pg_catalog")  # else it would run what it has made
            conn.execute(statement)

    def double_everything(self) -> None:
        """Make functions and operators for the calls in all migrations, with each argument of each type; they fail."""
        names = sorted({name for text in _scripts() for name in re.findall(r"\b([a-z_0-9]+)\(", text)})
        types = _array(TYPES)
        self.run(FUNCTIONS.format(names=_array(names), types=types))
        self.run(OPERATIONS.format(types=types, signs=_array(OPERATORS)))

    def lay_traps(self) -> None:
        """Make functions and operators that work, and that make this login a superuser when one runs them."""
        self.run(CATCHING.format(name=self.name))


@contextmanager
def stranger(dsn: str) -> Iterator[Stranger]:
    """Make a stranger, and drop it with all that it owns in this database."""
    name, password = f"test_{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        admin.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
        try:
            yield Stranger(dsn, name, password)
        finally:
            admin.execute(f"ALTER ROLE {name} NOSUPERUSER")
            admin.execute(REMOVAL.format(name=name))
            admin.execute(f"DROP OWNED BY {name} CASCADE")
            admin.execute(f"DROP ROLE {name}")


def upgrade_as_before(dsn: str) -> None:
    """Bring revision 0003 as the software of 0003 did: under whatever search_path the session has."""
    with sql_files.collected() as scripts:
        for module in MODULES:
            import_module(f"outbox_migrations.versions.{module}").upgrade()
    with psycopg.connect(dsn) as conn:
        for script in (VERSION_TABLE, *scripts):
            conn.execute(script.encode())
        conn.execute("INSERT INTO outbox.schema_version (version_num) VALUES ('0003')")


def _scripts() -> list[str]:
    folder = resources.files("outbox_migrations") / "sql"
    return [path.read_text(encoding="utf-8") for path in folder.iterdir()]


def _array(texts: list[str]) -> str:
    return "ARRAY[" + ", ".join(f"'{text}'" for text in texts) + "]"
