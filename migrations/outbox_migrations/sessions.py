"""Opens the session of an upgrade, with the settings of `outbox.sessions`, which this package does not import."""

from __future__ import annotations

from typing import Any

import psycopg

SETTINGS = {
    "search_path": "pg_catalog",
    "row_security": "off",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""What the database, the role or the environment may set otherwise."""
SINCE_17 = {"transaction_timeout": "0"}


def connect(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a session whose settings are ours; no limit of the role ends a long migration."""
    conn = psycopg.connect(dsn, client_encoding="UTF8", autocommit=True)
    settings = {**SETTINGS, **(SINCE_17 if conn.info.server_version >= 170_000 else {})}
    calls = (f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items())
    try:
        conn.execute(f"SELECT {', '.join(calls)}".encode())
        conn.autocommit = False
    except BaseException:
        conn.close()
        raise
    return conn
