"""The table of faststream-outbox, as its documentation has it made, and how SQLAlchemy is told where it is."""

from __future__ import annotations

from faststream_outbox import make_outbox_table, outbox_autovacuum_ddl
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, MetaData, create_engine, text

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA, table_name="outbox")
KEY = "key"
"""The header of a row that holds the key of the record."""


def url(dsn: str, driver: str) -> URL:
    """Return the address of a database for SQLAlchemy."""
    place = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}",
        username=str(place["user"]),
        password=place.get("password"),  # type: ignore[arg-type]
        host=str(place["host"]),
        port=int(place["port"] or 5432),
        database=str(place["dbname"]),
    )


def create(dsn: str) -> None:
    """Make the table with its indexes, and what its documentation recommends for autovacuum."""
    engine = create_engine(url(dsn, "psycopg"))
    with engine.begin() as conn:
        METADATA.create_all(conn)
        conn.execute(text(outbox_autovacuum_ddl("outbox")))
    engine.dispose()
