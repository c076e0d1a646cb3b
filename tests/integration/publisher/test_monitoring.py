"""`--http` of a relay and a checker: figures are true, and an outage makes a process unready and restarts nothing."""

from __future__ import annotations

import json

import pytest

from outbox_relay.monitoring.catalogue import FIGURES, RELAY
from tests.integration.publisher.test_several_databases import closed
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.scraping import get, probe, scrape
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def port_of(process: RelayProcess) -> int:
    """Return where the process serves."""
    return int(process.wait_for("serving")["port"])


@pytest.mark.feature("S-98")
def test_a_relay_counts_what_it_published_and_what_it_could_not(
    database: str, conn: Connection, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    missing = f"{topic}-missing"
    insert(conn, missing, "k", "secret body")
    insert(conn, topic, "k", "half", state="UNKNOWN", producer_group="pay")
    with RelayProcess(database, bootstrap_servers, "--http", "0") as relay:
        port = port_of(relay)
        relay.wait_until_running()
        insert_numbered(conn, topic, 120)
        wait_until(lambda: scrape(port)["outbox_published_messages_total",] == 120, "they are counted")
        wait_until(lambda: ("outbox_partitions_ahead",) in scrape(port), "the figures are read")
        held = ("UNKNOWN_TOPIC_OR_PART", "topic", missing)
        wait_until(lambda: scrape(port).get(("outbox_holds", *held)) == 1, "the missing topic is held")
        found = scrape(port)
        assert found["outbox_relay_lanes",] == 8
        assert found["outbox_lane_owned", "7"] == 1
        assert found["outbox_held_messages", *held] == 1
        assert found["outbox_holds_oldest_age_seconds", *held] > 0
        assert found["outbox_backlog_messages", missing] == 1
        assert found["outbox_backlog_oldest_age_seconds", missing] > 0
        assert found.get(("outbox_backlog_messages", topic), 0) == 0, "the other topic is published"
        assert found["outbox_half_messages", "pay", "UNKNOWN"] == 1
        assert found["outbox_kafka_ack_seconds_count",] >= found["outbox_published_batches_total",] > 0
        assert found["outbox_publish_latency_seconds_sum",] > 0
        assert found["outbox_publish_latency_seconds_count",] == found["outbox_kafka_ack_seconds_count",]
        page = get(port, "/metrics")[1]
        assert "secret" not in page
        families = {
            line.split()[2].removesuffix("_total") for line in page.splitlines() if line.startswith("# TYPE")
        }
        assert families <= {*RELAY, *FIGURES}
        assert set(RELAY) <= families


def test_while_postgresql_is_away_a_relay_lives_and_is_not_ready(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    with RelayProcess(database, bootstrap_servers, "--http", "0") as relay:
        port = port_of(relay)
        relay.wait_until_running()
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready")
        with closed(database):
            wait_until(lambda: probe(port, "/readyz")[0] == 503, "it is not ready")
            assert probe(port, "/readyz")[1]["checks"][0]["detail"] == "PostgreSQL is away"
            assert probe(port, "/livez")[0] == 200
            assert scrape(port)["outbox_sessions_failed_total",] >= 1
            assert scrape(port)["outbox_relay_lanes",] == 0
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready again")
        with connect(database) as conn:
            insert_numbered(conn, make_topic(), 10)
            wait_published(conn)
        wait_until(lambda: scrape(port)["outbox_published_messages_total",] == 10, "it counts on")
        relay.stop()


def test_a_relay_that_stands_by_is_ready_and_serves_no_figures_of_the_database(
    database: str, bootstrap_servers: str
) -> None:
    with RelayProcess(database, bootstrap_servers, "--http", "0") as relay:
        port = port_of(relay)
        relay.wait_until_running()
        wait_until(lambda: ("outbox_partitions_ahead",) in scrape(port), "it serves figures")
        succeed("relay", "drain", "--all", "--dsn", database)
        wait_until(lambda: scrape(port)["outbox_relay_lanes",] == 0, "it gives its lanes back")
        assert probe(port, "/readyz") == (
            200,
            {
                "ok": True,
                "checks": [
                    {"name": probe(port, "/livez")[1]["checks"][0]["name"], "ok": True, "detail": "stands by"}
                ],
            },
        )
        assert ("outbox_partitions_ahead",) not in scrape(port)


def test_a_checker_counts_by_group_what_came_of_its_checks(database: str, groups: Groups) -> None:
    groups.register("pay", {"kind": "sql", "query": "SELECT %(biz_id)s::integer < 2"})
    groups.prepare("pay", 3)
    with CheckerProcess(database, "--http", "0") as checker:
        port = port_of(checker)
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready")
        assert probe(port, "/livez")[0] == 200
        wait_until(
            lambda: scrape(port).get(("outbox_checks_total", "pay", "decided")) == 3, "all are counted"
        )
        checker.stop()


def test_a_port_that_is_taken_ends_the_command_with_the_reason(database: str, bootstrap_servers: str) -> None:
    with RelayProcess(database, bootstrap_servers, "--http", "0") as relay:
        taken = str(port_of(relay))
        ran = outbox("metrics", "serve", "--dsn", database, "--http", taken)
        assert ran.code == 1
        assert f"127.0.0.1 port {taken}" in ran.err


def test_the_metrics_are_listed_without_a_server() -> None:
    rows = json.loads(succeed("metrics", "ls", "--json").out)
    assert {"name": "outbox_relay_lanes", "kind": "gauge"}.items() <= rows[0].items()
