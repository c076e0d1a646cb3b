"""What is written down of what was published: one row for many messages, whatever they are."""

from __future__ import annotations

import pytest

from tests.support.plain_inserts import connect, insert_numbered
from tests.support.relay_in_process import publish

MESSAGES = 3_000


@pytest.mark.feature("S-36")
def test_under_load_one_publication_row_stands_for_fifty_messages_at_least(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        for start in range(0, MESSAGES, 100):
            insert_numbered(conn, topic, 100, start=start)
        publish(database, bootstrap_servers, MESSAGES)
        found = conn.execute(
            "SELECT count(*), sum(pg_catalog.cardinality(positions))::int FROM outbox.publication"
        ).fetchone()
    assert found is not None
    rows, messages = found
    assert messages == MESSAGES
    assert messages / rows >= 50, f"{rows} rows"
