"""Relay, consumer and commands at a broker that takes clients by TLS and a login only."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
import trustme

from outbox import Message, Outbox
from outbox.inbox import FIRST, ConsumeResult
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    FilterExpression,
    MessageExt,
    PushConsumerBuilder,
    StaticSessionCredentialsProvider,
)
from outbox_local.stack.api import Stack
from tests.support.inbox_stage import InboxStage, apply
from tests.support.outbox_command import succeed
from tests.support.relay_process import RelayProcess
from tests.support.secured_broker import PASSWORD, USER, SecuredBroker
from tests.support.waiting import wait_until


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecuredBroker]:
    with SecuredBroker(private_stack) as broker:
        yield broker


def listener(view: MessageExt) -> ConsumeResult:
    """Write a row of the message."""
    return apply(view.connection, view.message)


@pytest.mark.feature("S-75")
def test_a_message_goes_from_a_database_to_an_effect_by_tls_and_a_login(
    inbox: InboxStage, broker: SecuredBroker
) -> None:
    topic = broker.make_topic(f"secured-{uuid4().hex[:8]}")
    options = broker.options
    place = ("--dsn", inbox.dsn, "--bootstrap-servers", broker.bootstrap_servers)
    login = StaticSessionCredentialsProvider(USER, PASSWORD)
    trusted = {"ssl.ca.location": str(broker.authority)}
    builder = (
        PushConsumerBuilder(inbox.dsn)
        .set_client_configuration(ClientConfiguration(broker.bootstrap_servers, login, kafka=trusted))
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*")})
        .set_consume_from(FIRST)
        .set_message_listener(listener)
    )
    with RelayProcess(inbox.dsn, broker.bootstrap_servers, *options):
        with inbox.conn.transaction():
            Outbox().send_many(inbox.conn, [Message(topic, key=f"k{n}", body=str(n)) for n in range(10)])
        with builder.build() as consumer:
            inbox.wait_applied(10)
            wait_until(lambda: consumer.vitals().lag == 0, "it has caught up")
            [row] = succeed("consumers", "ls", "--json", *place, *options).json
            assert (row["consumer_group"], row["members"]) == (inbox.group, 1)
    [row] = succeed("consumers", "ls", "--json", *place, *options).json
    assert (row["lag"], row["partitions"]) == (0, 2), "positions were stored at the end"
    assert len(set(inbox.applied())) == 10


@pytest.mark.parametrize("wrong", ["sasl.password", "ssl.ca.location"])
def test_a_consumer_that_is_not_let_in_says_so_and_applies_nothing(
    inbox: InboxStage,
    broker: SecuredBroker,
    wrong: str,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = broker.make_topic(f"secured-{uuid4().hex[:8]}")
    other = tmp_path_factory.mktemp("other") / "ca.pem"
    trustme.CA().cert_pem.write_to_path(other)
    values = {"sasl.password": "wrong-Pa55", "ssl.ca.location": str(other)}
    kafka = {"bootstrap.servers": broker.bootstrap_servers, **broker.login, wrong: values[wrong]}
    with inbox.consumer(topic, kafka=kafka) as consumer:
        wait_until(lambda: consumer.vitals().trouble == "no broker of Kafka is reachable", "it is not let in")
    expected = "authentication" if wrong == "sasl.password" else "certificate verify failed"
    assert expected in caplog.text.lower()
    assert not any(text in caplog.text for text in ("wrong-Pa55", PASSWORD))
    assert inbox.count("applied") == 0
