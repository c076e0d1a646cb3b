"""The figures on which somebody is paged: what cannot be published is named by its topic, and space by its age."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from outbox_relay.database.connections import connect
from outbox_relay.monitoring.figures import Figures, observe_figures
from outbox_relay.monitoring.server import Monitoring
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, insert, insert_numbered
from tests.support.scraping import Samples, samples

DAY_S = 86_400


def read(dsn: str) -> Samples:
    """Read the figures of the database once."""
    figures, monitoring = Figures("shop", dsn, None), Monitoring()
    observe_figures(monitoring, figures, offered=lambda: True)
    with connect(dsn) as conn:
        assert figures.read(conn)
    return samples(generate_latest(monitoring.registry).decode())


@pytest.mark.feature("S-98")
def test_what_cannot_be_published_is_backlog_of_its_topic(
    database: str, conn: Connection, logins: Logins
) -> None:
    for topic, reason in (
        ("paused", "parked"),
        ("paused", "parked"),
        ("refused", "failed"),
        ("refused", "held"),
        ("refused", "expired"),
        ("well", None),
    ):
        insert(conn, topic, "k", "x")
        if reason is not None:
            conn.execute(
                "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
                "SELECT id, message_id, %(reason)s, number, number FROM outbox.message, "
                "LATERAL (SELECT CASE WHEN %(reason)s = 'failed' THEN id END) k (number) ORDER BY id DESC LIMIT 1",
                {"reason": reason},
            )
    found = read(logins.make("outbox_reader"))
    parked = {key[1:]: value for key, value in found.items() if key[0] == "outbox_parked_messages"}
    assert parked == {("parked", "paused"): 2, ("failed", "refused"): 1, ("held", "refused"): 1}
    backlog = {key[1]: value for key, value in found.items() if key[0] == "outbox_backlog_messages"}
    assert backlog == {"paused": 2, "refused": 2, "well": 1}
    assert all(found["outbox_backlog_oldest_age_seconds", topic] > 0 for topic in backlog)


def test_what_nobody_drops_and_what_nobody_is_told_has_an_age(database: str, conn: Connection) -> None:
    found = read(database)
    assert found["outbox_history_oldest_age_seconds",] == found["outbox_alarms_unsent_seconds",] == 0
    insert_numbered(conn, "orders", 100)
    conn.execute("SELECT outbox.ensure_inbox_partition((now() AT TIME ZONE 'utc')::date - %s)", [50])
    for kind, raised, sent, cleared in (
        ("sent", 5_000, 4_000, None),
        ("raised", 1_000, None, None),
        ("cleared", 3_000, 2_900, 500),
    ):
        conn.execute(
            "INSERT INTO outbox.notice (kind, cause, detail, raised_at, raise_sent_at, cleared_at) "
            "VALUES (%s, 'c', 'd', now() - %s::interval, now() - %s::interval, now() - %s::interval)",
            [kind, *(None if s is None else timedelta(seconds=s) for s in (raised, sent, cleared))],
        )
    found = read(database)
    assert found["outbox_alarms_unsent_seconds",] == pytest.approx(1_000, abs=600)
    assert 0 < found["outbox_history_oldest_age_seconds",] < DAY_S
    assert found["outbox_inbox_oldest_age_seconds",] > 48 * DAY_S
    assert found["outbox_history_bytes",] > 0 < found["outbox_inbox_bytes",]
    assert found["outbox_ids_left_seconds",] > DAY_S
