"""Every session that the product opens is opened in a few known places, by one list of settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from outbox import sessions
from outbox.statements import Statements
from outbox_migrations import sessions as migrations
from tests.support.sources import parse, walk

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("outbox", "relay", "local", "spark_etl", "migrations")
OPENERS = {
    "connect",
    "create_engine",
    "create_async_engine",
    "ConnectionPool",
    "AsyncConnectionPool",
    "create_pool",
}
LIBRARIES = ("psycopg", "AsyncConnection", "Connection", "asyncpg", "dbapi", "sqlalchemy", "Driver()")
KNOWN = {
    # The list of settings is applied here.
    "outbox/sessions.py": ["psycopg.connect", "psycopg.connect", "AsyncConnection.connect"],
    # Its own lists, equal to that one by the tests below: these packages import no other.
    "migrations/outbox_migrations/sessions.py": ["psycopg.connect"],
    "spark_etl/outbox_etl/arrow/task.py": ["dbapi.connect"],
    "spark_etl/outbox_etl/source/reader.py": ["Driver().connect"],
    # As applications open theirs.
    "local/outbox_local/demo/producer.py": ["psycopg.connect"],
    "relay/outbox_relay/proving/workload.py": ["psycopg.connect"],
    "local/outbox_local/shop/failures.py": ["psycopg.connect"],
    "local/outbox_local/shop/tables.py": ["sqlalchemy.create_engine", "psycopg.connect"],
}


def test_sessions_are_opened_in_the_known_places_only() -> None:
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            calls = [
                name
                for node in walk(parse(path))
                if isinstance(node, ast.Attribute | ast.Name) and (name := _opener(node))
            ]
            if calls:
                found[str(path.relative_to(ROOT))] = calls
    assert {path: sorted(calls) for path, calls in found.items()} == {
        path: sorted(calls) for path, calls in KNOWN.items()
    }


def _opener(node: ast.Attribute | ast.Name) -> str:
    name = ast.unparse(node)
    owner, _, last = name.rpartition(".")
    if last not in OPENERS or (last == "connect" and not owner):
        return ""
    library = owner.rpartition(".")[2]
    return f"{library}.{last}" if library in LIBRARIES or not owner else ""


def test_migrations_set_the_same() -> None:
    ours = {**sessions.OWN, **sessions.limits(170_000)}
    assert ours == migrations.SETTINGS | migrations.SINCE_17
    assert sessions.limits(160_000).keys() == sessions.limits(170_000).keys() - migrations.SINCE_17.keys()


def test_the_export_sets_the_same_for_each_transaction() -> None:
    source = Statements("outbox_etl/sql/source.sql")
    found = dict(re.findall(r"\('(\w+)', '([^']*)'[),]", source["settings"]))
    found["search_path"] = "pg_catalog"
    assert "pg_catalog.set_config('search_path', 'pg_catalog', true)" in source["settings"]
    wanted = {**sessions.OWN, **sessions.limits(170_000)}
    isolation = wanted.pop("default_transaction_isolation")
    assert found == wanted
    assert source["isolation"] == f"SET TRANSACTION ISOLATION LEVEL {isolation.upper()}"
