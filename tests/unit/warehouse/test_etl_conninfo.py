"""The connection of libpq that a DSN gives, next to that of JDBC: the same server, login and settings."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox_etl.options.dsn import parse

ALWAYS = {"application_name": "outbox-etl", "client_encoding": "UTF8", "connect_timeout": "10"}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSWORD", r"it's a \ secret")


def test_the_words_of_a_dsn_come_through() -> None:
    dsn = "postgresql://app@[::1],db:5433/shop?sslmode=require&options=-c%20search_path%3Dx&connect_timeout=3"
    assert conninfo_to_dict(parse(dsn).conninfo) == ALWAYS | {
        "host": "::1,db", "port": "5433,5433", "user": "app", "dbname": "shop", "password": r"it's a \ secret",
        "sslmode": "require", "options": "-c search_path=x", "connect_timeout": "3",
    }  # fmt: skip


def test_a_login_is_quoted_and_not_shown() -> None:
    found = parse("host=db user=app dbname='a shop' password='p q=1'")
    assert conninfo_to_dict(found.conninfo)["password"] == "p q=1"
    assert conninfo_to_dict(found.conninfo)["dbname"] == "a shop"
    assert "q=1" not in repr(found)
