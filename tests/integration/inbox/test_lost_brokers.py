"""A client of Kafka that finds no broker any more is replaced by a new one."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import Consumer

from outbox.inbox import poller
from outbox.inbox.poller import Poller
from tests.support.inbox_stage import InboxStage
from tests.support.waiting import wait_until


def closed_port() -> str:
    """An address at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_client_that_finds_no_broker_is_replaced(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients are real ones that cannot connect, as one is whose list of brokers has become empty. The second one
    cannot be made, as while a file of certificates is being replaced.
    """
    made: list[str] = []
    make = Poller._client

    def client(self: Poller) -> Consumer:
        made.append("")
        if len(made) > 3:
            return make(self)
        if len(made) == 2:
            missing = {"security.protocol": "ssl", "ssl.ca.location": "/missing/ca.pem"}
            return Consumer({**self._settings.librdkafka, **missing}, logger=poller.log)
        config = {**self._settings.librdkafka, "bootstrap.servers": closed_port(), "error_cb": self._on_error}
        return Consumer(config, logger=poller.log)

    monkeypatch.setattr(Poller, "_client", client)
    monkeypatch.setattr(poller, "RENEWAL", 1.0)
    monkeypatch.setattr(poller, "REPLY_TIME", 0.5)
    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic) as consumer:
        wait_until(lambda: consumer.vitals().trouble == "no broker of Kafka is reachable", "it notices")
        inbox.wait_applied(20)
        assert consumer.vitals().trouble is None, "a message has come"
        wait_until(lambda: len(made) == 4, "the fourth one works")
    assert inbox.count("outbox.inbox") == 20
    assert len(made) == 4, "a client that works is kept"
