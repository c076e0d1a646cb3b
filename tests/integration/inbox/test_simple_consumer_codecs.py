"""Codecs and traces of RocketMQ's simple consumer, over a real broker.

Decoding comes after the lease, in a transaction of its own. The process dies in between, or the codec fails: the lease
ends, and the message is received again. It dies before the acknowledgement of an erased message: the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from opentelemetry.trace import StatusCode, get_current_span

from outbox import Message, Outbox
from outbox.codecs import Codec, Encoded
from outbox.errors import ConfigurationError
from outbox.inbox import FIRST
from outbox.opentelemetry import OpenTelemetry
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    FilterExpression,
    SimpleConsumer,
    SimpleConsumerBuilder,
)
from outbox.statements import Plan
from tests.support.encrypted_bodies import encryption
from tests.support.inbox_stage import InboxStage
from tests.support.outbox_command import succeed
from tests.support.relay_session import relay_session, turn_until
from tests.support.traces import Traces, context_of, span_ids
from tests.support.waiting import wait_until

LEASE = 60.0


class Failing(Codec):
    """Fails at some first attempts to decode."""

    def __init__(self, times: int) -> None:
        self.times = times

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        yield from ()
        return Encoded(body)

    def decode(self, message: Any, body: bytes) -> Plan[bytes]:
        self.times -= 1
        if self.times >= 0:
            raise TimeoutError("the store is away")
        yield from ()
        return body.upper()


def build(
    stage: InboxStage,
    topic: str,
    *,
    codecs: Mapping[str, Codec] | None = None,
    tracing: OpenTelemetry | None = None,
) -> SimpleConsumer:
    """Start a simple consumer of the group of a stage."""
    return (
        SimpleConsumerBuilder(stage.dsn)
        .set_client_configuration(
            ClientConfiguration(stage.bootstrap_servers, kafka={"session.timeout.ms": 6000})
        )
        .set_consumer_group(stage.group)
        .set_subscription_expressions({topic: FilterExpression()})
        .set_consume_from(FIRST)
        .set_await_duration(1.0)
        .set_codecs(codecs)
        .set_tracing(tracing)
        .build()
    )


def publish(stage: InboxStage, topic: str, bodies: Mapping[str, str], **options: Any) -> None:
    """Send a message for each key by the outbox, and publish them by a relay."""
    outbox = Outbox(**options)
    with psycopg.connect(stage.dsn) as conn:
        for key, body in bodies.items():
            outbox.send(conn, Message(topic, key, body, queue=0))
    with relay_session(stage.dsn, stage.bootstrap_servers) as session:
        turn_until(session, lambda: stage.end_of(topic) >= len(bodies), "all are in Kafka")


def received(consumer: SimpleConsumer, count: int, seconds: float = LEASE) -> list[Any]:
    """Receive so many messages, in as many calls as it takes."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(consumer.receive(10, seconds))
        return len(found) >= count

    wait_until(enough, f"{count} messages are received")
    return found


def test_received_messages_have_the_bodies_that_were_sent(inbox: InboxStage, topic: str) -> None:
    publish(inbox, topic, {"k1": "a", "k2": "b"}, codecs={topic: encryption()})
    with build(inbox, topic, codecs={topic: encryption()}) as consumer:
        views = received(consumer, 2)
        assert sorted(view.body for view in views) == [b"a", b"b"]
        for view in views:
            consumer.ack(view)
    assert inbox.count("outbox.inbox_parked") == 0


def test_an_erased_message_is_acknowledged_and_the_others_are_received(inbox: InboxStage, topic: str) -> None:
    publish(inbox, topic, {"k1": "a", "k2": "b"}, codecs={topic: encryption()})
    succeed("key", "destroy", "customer/k1", "--yes", OUTBOX_DSN=inbox.dsn)
    with build(inbox, topic, codecs={topic: encryption()}) as consumer:
        [view] = received(consumer, 1)
        assert view.body == b"b"
        consumer.ack(view)
        assert consumer.receive(10, LEASE) == []
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_message_that_cannot_be_decoded_is_received_again(inbox: InboxStage, topic: str) -> None:
    inbox.produce(topic, "k", "a")
    inbox.flush()
    with build(inbox, topic, codecs={topic: Failing(2)}) as consumer:
        [view] = received(consumer, 1, seconds=0.1)
        assert (view.body, view.delivery_attempt) == (b"A", 3)


def test_a_codec_of_a_topic_that_is_not_read_is_refused(inbox: InboxStage, topic: str) -> None:
    with pytest.raises(ConfigurationError, match="does not read topic 'other'"):
        build(inbox, topic, codecs={"other": Failing(0)})


def test_a_receive_has_links_and_the_work_goes_on_in_the_trace_of_its_message(
    inbox: InboxStage, topic: str
) -> None:
    traces = Traces()
    with traces.tracer.start_as_current_span("transaction") as transaction:
        publish(inbox, topic, {"k1": "a", "k2": "b"}, tracing=traces.tracing)
    creates = traces.named(f"create {topic}")
    with build(inbox, topic, tracing=traces.tracing) as consumer:
        with traces.tracer.start_as_current_span("round") as current:
            views = received(consumer, 2)
        with consumer.processing(views[0]):
            trace_id = get_current_span().get_span_context().trace_id
        with pytest.raises(ValueError, match="broken"), consumer.processing(views[1]):
            raise ValueError("broken")
    receives = traces.named(f"receive {topic}")
    assert all(span.parent == current.get_span_context() for span in receives)
    links = [link.context for span in receives for link in span.links]
    assert span_ids(links) == span_ids([context_of(span) for span in creates])
    assert sum(span.attributes["messaging.batch.message_count"] for span in receives) == 2  # type: ignore[index,misc]
    assert trace_id == transaction.get_span_context().trace_id
    assert [span.status.status_code for span in traces.named(f"process {topic}")] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_a_simple_consumer_without_tracing_runs_the_work_alone(inbox: InboxStage, topic: str) -> None:
    inbox.produce(topic, "k", "a")
    inbox.flush()
    with build(inbox, topic) as consumer:
        [view] = received(consumer, 1)
        with consumer.processing(view):
            assert not get_current_span().get_span_context().is_valid
