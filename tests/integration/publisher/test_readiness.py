"""`/readyz` is 503 while each turn of a process fails, with the reason, and 200 again when the cause is repaired.

The connection stands and PostgreSQL replies in all of these: only what the process has to do is refused. A process with
its rights is the bystander: it is ready all the time, and does its work.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tests.integration.publisher.test_monitoring import port_of
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, insert_numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.scraping import probe, scrape
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

REFUSED = "InsufficientPrivilege (SQLSTATE 42501)"


def detail(port: int) -> str:
    """Return what `/readyz` states first."""
    return str(probe(port, "/readyz")[1]["checks"][0]["detail"])


def test_a_checker_whose_role_may_only_read_is_not_ready(
    database: str, groups: Groups, logins: Logins
) -> None:
    groups.register("pay", {"kind": "sql", "query": "SELECT true"})
    groups.prepare("pay", 2)
    with CheckerProcess(logins.make("outbox_reader"), "--http", "0") as checker:
        port = port_of(checker)
        wait_until(lambda: REFUSED in detail(port), "it states why")
        assert probe(port, "/readyz")[0] == 503
        assert detail(port).startswith("each turn of its 1 groups fails, the last: ")
        assert probe(port, "/livez")[0] == 200
        assert groups.states("pay") == {"UNKNOWN": 2}
        with CheckerProcess(database, "--http", "0") as bystander:
            other = port_of(bystander)
            groups.wait_for("pay", {"COMMITTED": 2})
            assert probe(other, "/readyz")[0] == 200
        groups.prepare("pay", 1)
        groups.conn.execute(f"GRANT outbox_checker TO {logins.newest}")
        groups.wait_for("pay", {"COMMITTED": 3})
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready")


def test_a_checker_is_ready_while_one_of_its_groups_is_served(database: str, groups: Groups) -> None:
    """The turns of one group are refused by a trigger of its own; the other one's are not."""
    for name in ("sick", "well"):
        groups.register(name, {"kind": "sql", "query": "SELECT true"})
    groups.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$"
    )
    groups.conn.execute(
        "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON outbox.pending_check FOR EACH ROW "
        "WHEN (NEW.producer_group = 'sick') EXECUTE FUNCTION refuse()"
    )
    groups.prepare("sick", 1)
    groups.prepare("well", 1)
    with CheckerProcess(database, "--http", "0") as checker:
        port = port_of(checker)
        groups.wait_for("well", {"COMMITTED": 1})
        wait_until(
            lambda: scrape(port).get(("outbox_check_turns_failed", "sick"), 0) > 2,
            "the sick one's turns fail",
        )
        assert probe(port, "/readyz")[0] == 200
        assert "1 of them fail" in detail(port)


def test_a_relay_whose_records_are_refused_is_not_ready(
    database: str, conn: Connection, logins: Logins, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """It reads, publishes, and may not record: each session looks well until it ends."""
    conn.execute("REVOKE INSERT ON outbox.publication FROM outbox_relay")
    insert_numbered(conn, make_topic(), 5)
    with RelayProcess(logins.make("outbox_relay"), bootstrap_servers, "--http", "0") as relay:
        port = port_of(relay)

        def failed() -> float:
            return scrape(port)["outbox_sessions_failed_total",]

        wait_until(lambda: failed() >= 2, "sessions fail")
        known = failed()
        seen: set[tuple[int, bool]] = set()

        def looked() -> bool:
            status, page = probe(port, "/readyz")
            seen.add((status, REFUSED in page["checks"][0]["detail"]))
            return failed() >= known + 3

        wait_until(looked, "more of them fail")
        assert seen == {(503, True)}, "between two failures it looked ready"
        assert probe(port, "/livez")[0] == 200
        conn.execute("GRANT INSERT ON outbox.publication TO outbox_relay")
        wait_published(conn)
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready")


def test_metrics_that_cannot_be_read_any_more_are_not_ready(
    database: str, conn: psycopg.Connection[Any], logins: Logins
) -> None:
    dsn = logins.make("outbox_reader")
    serve = ("serve", "--log-format", "json", "--http", "0", "--every", "1")
    with RelayProcess(dsn, "", service="metrics", action=serve) as serving:
        port = port_of(serving)
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready")
        conn.execute("REVOKE SELECT ON outbox.waiting FROM outbox_reader")
        wait_until(lambda: REFUSED in detail(port), "it states why")
        assert probe(port, "/readyz")[0] == 503
        assert ("outbox_partitions_ahead",) in scrape(port), "the last figures are there"
        conn.execute("GRANT SELECT ON outbox.waiting TO outbox_reader")
        wait_until(lambda: probe(port, "/readyz")[0] == 200, "it is ready again")
        serving.stop()
