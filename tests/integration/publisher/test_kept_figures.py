"""The figures on which somebody is paged: what cannot be published is named by its topic, and space by its age."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from outbox_relay.database.connections import connect
from outbox_relay.monitoring.figures import Figures, observe_figures
from outbox_relay.monitoring.server import Monitoring
from tests.support.held_keys import hold_key, hold_partition, hold_topic, write_key
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, insert_numbered
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
    write_key(conn, "paused", "k")
    hold_topic(conn, "paused", "TOPIC_PAUSED: by a test")
    hold_key(conn, write_key(conn, "refused", "k"), age=60.0)
    hold_key(conn, write_key(conn, "refused", "other", 3), age=3_600.0)
    write_key(conn, "refused", "expired", 1)
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) "
        "SELECT id, message_id, 'expired' FROM outbox.message ORDER BY id DESC LIMIT 1"
    )
    write_key(conn, "sick", "k", 1)
    hold_partition(conn, "sick", 2, "LEADER_NOT_AVAILABLE: partition 2")
    found = read(logins.make("outbox_reader"))
    held = {
        name: {key[1:]: value for key, value in found.items() if key[0] == name}
        for name in ("outbox_holds", "outbox_held_messages", "outbox_holds_oldest_age_seconds")
    }
    paused, refused = ("TOPIC_PAUSED", "topic", "paused"), ("MESSAGE_TOO_LARGE", "key", "refused")
    sick = ("LEADER_NOT_AVAILABLE", "partition", "sick")
    assert held["outbox_holds"] == {paused: 1, refused: 2, sick: 1}
    assert held["outbox_held_messages"] == {paused: 2, refused: 3, sick: 1}
    assert held["outbox_holds_oldest_age_seconds"][refused] == pytest.approx(3_600, abs=600)
    assert found["outbox_waiting_messages", "expired"] == 1
    assert found["outbox_problems", "hold"] == 3, "one for each kind"
    backlog = {key[1]: value for key, value in found.items() if key[0] == "outbox_backlog_messages"}
    assert backlog == {"paused": 2, "refused": 5, "sick": 1}
    assert all(found["outbox_backlog_oldest_age_seconds", topic] > 0 for topic in backlog)


def test_holds_of_smaller_topics_are_one_series(
    database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_relay.monitoring.figures.MOST_TOPICS", 1)
    hold_key(conn, write_key(conn, "large", "k", 9))
    for topic, age in (("one", 60.0), ("two", 3_600.0)):
        hold_key(conn, write_key(conn, topic, "k", 3), age=age)
    found = read(database)
    code, kind, others = "MESSAGE_TOO_LARGE", "key", "(others)"
    assert found["outbox_holds", code, kind, "large"] == 1
    assert found["outbox_holds", code, kind, others] == 2
    assert found["outbox_held_messages", code, kind, others] == 4
    assert found["outbox_holds_oldest_age_seconds", code, kind, others] == pytest.approx(3_600, abs=600)


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
