"""A client of Kafka that does not come back to its group is replaced by a new one, whatever it reports."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from confluent_kafka import Consumer

from outbox.inbox import clients
from outbox.inbox.clients import GroupClient
from outbox.inbox.core import contact
from outbox.inbox.core.contact import AWAY, UNKNOWN
from outbox.inbox.metrics import serve_metrics
from outbox.inbox.poller import Poller
from tests.support.inbox_stage import InboxStage
from tests.support.scraping import probe
from tests.support.waiting import wait_until


def closed_port() -> str:
    """An address at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a member be silent for a second only; its session takes six."""
    monkeypatch.setattr(contact, "PATIENCE", -5.0)
    monkeypatch.setattr(contact, "CONFIRM", 0.2)
    monkeypatch.setattr(contact, "AGAIN", 0.2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("reports", [True, False], ids=["reported", "silent"])
def test_a_client_that_finds_no_broker_is_replaced(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch, *, reports: bool
) -> None:
    """Two clients are real ones that cannot connect, as one is whose list of brokers has become empty. The second one
    cannot be made, as while a file of certificates is being replaced. What they report may be nothing.
    """
    made: list[str] = []
    make = GroupClient.made

    def client(self: GroupClient) -> Consumer:
        made.append("")
        if len(made) > 3:
            return make(self)
        if len(made) == 2:
            missing = {"security.protocol": "ssl", "ssl.ca.location": "/missing/ca.pem"}
            return Consumer({**self._member.librdkafka, **missing}, logger=clients.log)
        config: dict[str, Any] = {**self._member.librdkafka, "bootstrap.servers": closed_port()}
        if reports:
            config["error_cb"] = self.on_error
        return Consumer(config, logger=clients.log)

    monkeypatch.setattr(GroupClient, "made", client)
    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic) as consumer, serve_metrics([consumer], 0) as server:
        if reports:
            wait_until(lambda: consumer.vitals().trouble == AWAY, "it notices")
        wait_until(lambda: consumer.vitals().trouble == UNKNOWN, "Kafka states that it is not a member")
        status, page = probe(server.port, "/readyz")
        if status != 200:  # else it has come back just now
            assert page["checks"][0]["detail"] == UNKNOWN
        inbox.wait_applied(20)
        wait_until(lambda: consumer.vitals().trouble is None, "it was assigned partitions")
        wait_until(lambda: probe(server.port, "/readyz")[0] == 200, "it is ready")
    assert inbox.count("outbox.inbox") == 20
    assert len(made) == 4, "a client that works is kept"


@pytest.mark.usefixtures("quick")
def test_members_that_have_nothing_to_do_keep_their_clients(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads a topic that nothing comes to, one is in excess, and one has a topic that does not exist."""
    asked: list[bool | None] = []
    judge = Poller._judge

    def judging(self: Poller, is_known: bool | None) -> None:
        asked.append(is_known)
        judge(self, is_known)

    monkeypatch.setattr(Poller, "_judge", judging)
    monkeypatch.setattr(GroupClient, "replace", lambda *_: pytest.fail("it was replaced"))
    members = [inbox.consumer(topic) for _ in range(5)]
    missing = inbox.consumer("no-such-topic", group=f"{inbox.group}-2")
    for member in members:
        member.start()
    try:
        wait_until(lambda: sum(len(each.vitals().partitions) for each in members) == 4, "all are read")
        asked.clear()
        with missing:
            wait_until(lambda: len(asked) > 30, "Kafka was asked")
            assert all(asked)
            assert {each.vitals().trouble for each in [*members, missing]} == {None}
    finally:
        for member in members:
            member.close()
