"""Settings of a database that nobody who writes a program has in mind, and doubles of PostgreSQL's own functions.

Whoever may create in `public` can make a function with a name of PostgreSQL's, for exactly the types of some call. It
is found before PostgreSQL's, wherever that one takes other types or a variable number of them. A double here raises.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

STYLES = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "array_nulls": "off",
}
ENCODING = {"client_encoding": "LATIN1"}
ISOLATION = {"default_transaction_isolation": "serializable"}
TIMEOUTS = {
    "statement_timeout": "1500ms",
    "lock_timeout": "300ms",
    "idle_in_transaction_session_timeout": "700ms",
    "idle_session_timeout": "700ms",
    "transaction_timeout": "2s",
}
"""The last one is unknown before PostgreSQL 17."""
NAMES = {"search_path": "public, pg_temp", "row_security": "on"}
EVERYTHING = {**STYLES, **ENCODING, **ISOLATION, **NAMES, **TIMEOUTS}

FOR_EVERYBODY = {**STYLES, **ENCODING, **NAMES}
"""What sessions at the servers of all tests begin with; time-outs and conflicts would be a matter of luck there."""
USUAL = {
    "datestyle": "ISO,MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "client_encoding": "UTF8",
    "search_path": '"$user",public',
}
PGOPTIONS = " ".join(f"-c {name}={value}" for name, value in USUAL.items())
"""What connections of tests begin with: they are those of applications, of which nobody expects anything else. Services
and commands are started without it, so that what their sessions need is what they set themselves.
"""

_NAMES = """
    ('concat_ws', 'text, text, text', 'text'), ('concat_ws', 'text, text, text, text', 'text'),
    ('concat_ws', 'text, text, text, text, text', 'text'), ('concat', 'text, text', 'text'),
    ('concat', 'text, text, text', 'text'), ('format', 'text, text', 'text'), ('format', 'text, name', 'text'),
    ('format', 'text, bigint', 'text'), ('format', 'text, integer', 'text'), ('format', 'text, text, text', 'text'),
    ('format', 'text, text, bigint', 'text'), ('format', 'text, bigint, bigint', 'text'),
    ('format', 'text, text, text, text', 'text'), ('hashtextextended', 'text, integer', 'bigint'),
    ('hashtext', 'varchar', 'integer'), ('greatest', 'bigint, integer', 'bigint'),
    ('make_interval', 'integer', 'interval'), ('to_jsonb', 'text', 'jsonb'), ('to_json', 'text', 'json'),
    ('array_length', 'text[], integer', 'integer'), ('cardinality', 'text[]', 'integer'),
    ('jsonb_build_object', 'text, text', 'jsonb'), ('array_position', 'bigint[], bigint', 'integer'),
    ('array_to_string', 'text[], text', 'text'), ('max', 'xid8', 'xid8'), ('round', 'numeric, bigint', 'numeric'),
    ('left', 'text, bigint', 'text')
"""
_OF_TOOLS = """
    ('unnest', 'text[]', 'integer'), ('unnest', 'bigint[]', 'integer'), ('count', 'bigint', 'bigint')
"""
_MAKE = """
    CREATE OR REPLACE FUNCTION public.a_stranger_was_called() RETURNS integer LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION 'a function of a stranger was called'; END$$;
    DO $$
    DECLARE
        f record;
    BEGIN
        FOR f IN SELECT * FROM (VALUES {names}) f (name, arguments, result) LOOP
            EXECUTE pg_catalog.format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE sql AS $f$'
                'SELECT public.a_stranger_was_called()::text::%s$f$', f.name, f.arguments, f.result, f.result);
        END LOOP;
    END $$;
"""
DOUBLES = _MAKE.format(names=_NAMES)
"""In every database of a test."""
MORE_DOUBLES = _MAKE.format(names=_OF_TOOLS)
"""Of functions that SQLAlchemy, and tests, call by their names alone."""


def set_for_database(dsn: str, settings: dict[str, str]) -> None:
    """Set what new sessions of the database of a DSN begin with; what its server does not know is left out."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        known = {name for (name,) in conn.execute("select name from pg_catalog.pg_settings")}
        database = conn.info.dbname
        for name, value in settings.items():
            if name in known:
                # A list of names is a list, not one quoted name.
                given = sql.SQL(value) if name == "search_path" else sql.Literal(value)
                conn.execute(
                    sql.SQL("alter database {} set {} = ").format(
                        sql.Identifier(database), sql.Identifier(name)
                    )
                    + given
                )
