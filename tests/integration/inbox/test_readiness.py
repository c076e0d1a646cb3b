"""A consumer is not ready while each transaction of its messages is refused, and names the error."""

from __future__ import annotations

from outbox.inbox.metrics import serve_metrics
from tests.support.inbox_stage import InboxStage
from tests.support.logins import Logins
from tests.support.scraping import probe
from tests.support.waiting import wait_until


def test_a_consumer_whose_messages_are_refused_is_not_ready(
    inbox: InboxStage, logins: Logins, topic: str
) -> None:
    """It is registered, reads Kafka and stores positions: only the inbox does not take its messages."""
    dsn = logins.make("outbox_consumer")
    inbox.conn.execute("GRANT INSERT ON applied TO PUBLIC")
    inbox.conn.execute("REVOKE INSERT ON outbox.inbox, outbox.inbox_parked FROM outbox_consumer")
    inbox.produce_numbered(topic, 8)
    with (
        inbox.consumer(topic, dsn=dsn) as consumer,
        inbox.consumer(topic, group=f"{inbox.group}-well") as bystander,
        serve_metrics([consumer, bystander], 0) as server,
    ):
        inbox.wait_applied(8)

        def detail() -> str:
            return str(probe(server.port, "/readyz")[1]["checks"][0]["detail"])

        refused = "each transaction of a message fails, the last: InsufficientPrivilege (SQLSTATE 42501)"
        wait_until(lambda: detail() == refused, "it states why")
        status, page = probe(server.port, "/readyz")
        assert status == 503
        assert [check["ok"] for check in page["checks"]] == [False, True]
        assert probe(server.port, "/livez")[0] == 200
        inbox.conn.execute("GRANT INSERT ON outbox.inbox, outbox.inbox_parked TO outbox_consumer")
        inbox.wait_applied(16)
        wait_until(lambda: probe(server.port, "/readyz")[0] == 200, "both are ready")
