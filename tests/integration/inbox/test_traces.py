"""One trace from the transaction that sends to the listener, through PostgreSQL, the relay and Kafka."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.trace import StatusCode, get_current_span, set_span_in_context

from outbox import AsyncOutbox, Message, Outbox
from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.inbox_stage import FAST, Connection, InboxStage, apply, apply_all
from tests.support.relay_session import relay_session, turn_until
from tests.support.traces import Traces, context_of, span_ids
from tests.support.waiting import wait_until


def send(stage: InboxStage, topic: str, traces: Traces) -> None:
    """Send a message in each of the ways that there are, in a transaction with a span, and publish them."""
    outbox = Outbox("shop", tracing=traces.tracing)
    with psycopg.connect(stage.dsn) as conn, traces.tracer.start_as_current_span("transaction"):
        outbox.send(conn, Message(topic, "k1", "secret 1", queue=0))
        outbox.send_many(conn, [Message(topic, "k2", "secret 2", queue=0)])
        half = outbox.prepare(conn, Message(topic, "k3", "secret 3", queue=0))
        outbox.commit(conn, half)
        conn.commit()
        asyncio.run(send_async(stage, topic, traces))
    with relay_session(stage.dsn, stage.bootstrap_servers) as session:
        turn_until(session, lambda: stage.end_of(topic) >= 4, "all are in Kafka")


async def send_async(stage: InboxStage, topic: str, traces: Traces) -> None:
    outbox = AsyncOutbox("shop", tracing=traces.tracing)
    async with await psycopg.AsyncConnection.connect(stage.dsn) as conn:
        await outbox.send(conn, Message(topic, "k4", "secret 4", queue=0))


def current_id() -> int:
    return get_current_span().get_span_context().span_id


@pytest.mark.parametrize("kind", ["single", "async", "batch"])
def test_one_trace_leads_from_the_transaction_to_the_listener(
    inbox: InboxStage, topic: str, kind: str
) -> None:
    traces, current = Traces(), []

    def single(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        current.append(current_id())
        return apply(conn, message)

    async def awaited(conn: psycopg.AsyncConnection[Any], message: ConsumedMessage) -> ConsumeResult:
        await conn.execute("INSERT INTO applied (message_id) VALUES (%s)", [message.message_id])
        current.append(current_id())
        return ConsumeResult.SUCCESS

    def batch(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        current.append(current_id())
        return apply_all(conn, messages)

    send(inbox, topic, traces)
    (transaction,) = traces.named("transaction")
    trace_id = context_of(transaction).trace_id
    creates = traces.named(f"create {topic}")
    assert [span.parent for span in creates] == [context_of(transaction)] * 4
    listener: Any = {"single": single, "async": awaited, "batch": batch}[kind]
    options: dict[str, Any] = {"batch": 100, "linger": 0.2} if kind == "batch" else {}
    with inbox.consumer(topic, listener, tracing=traces.tracing, **options):
        inbox.wait_applied(4)
    processed = traces.named(f"process {topic}")
    assert sorted(context_of(span).span_id for span in processed) == sorted(current)
    links = [link.context for span in processed for link in span.links]
    assert span_ids(links) == span_ids([context_of(span) for span in creates]), "each message, once"
    if kind == "batch":
        assert all(span.parent is None for span in processed)
    else:
        assert {context_of(span).trace_id for span in processed} == {trace_id}
        assert span_ids([span.parent for span in processed]) == span_ids(links)
    assert "secret" not in traces.text()


@pytest.mark.parametrize("is_batch", [False, True])
def test_each_attempt_has_a_span_of_its_own(inbox: InboxStage, topic: str, is_batch: bool) -> None:
    traces = Traces()

    def listener(conn: Connection, given: Any) -> ConsumeResult:
        (message,) = given if is_batch else [given]
        if message.reconsume_times < 2:
            conn.execute("SELECT %s::text::int", [message.body.decode()])  # the error quotes the body
        return apply(conn, message)

    inbox.produce(topic, "k", "secret", headers=(("traceparent", f"00-{'a' * 32}-{'b' * 16}-01".encode()),))
    inbox.flush()
    options: dict[str, Any] = {"batch": 10} if is_batch else {}
    with inbox.consumer(topic, listener, tracing=traces.tracing, delays=FAST, **options):
        inbox.wait_applied(1)
        wait_until(lambda: len(traces.named(f"process {topic}")) == 3, "three attempts have ended")
    spans = traces.named(f"process {topic}")
    assert [(span.attributes or {})["outbox.attempt"] for span in spans] == [1, 2, 3]
    error, fine = StatusCode.ERROR, StatusCode.UNSET
    assert [span.status.status_code for span in spans] == [error, error, fine]
    kinds = [(span.attributes or {}).get("error.type") for span in spans]
    assert kinds == ["psycopg.errors.InvalidTextRepresentation"] * 2 + [None]
    assert "secret" not in traces.text()


def test_the_same_idempotency_key_in_another_trace_is_the_same_send(inbox: InboxStage) -> None:
    traces = Traces()
    outbox = Outbox("shop", tracing=traces.tracing)
    with psycopg.connect(inbox.dsn) as conn:
        receipts = []
        for request in ("1", "2"):
            baggage_of_request = baggage.set_baggage("request", request)
            with traces.tracer.start_as_current_span("transaction", baggage_of_request) as span:
                token = attach(set_span_in_context(span, baggage_of_request))
                message = Message("orders", headers={"a": "b"})
                receipts.append(outbox.send(conn, message, idempotency_key="order-1"))
                detach(token)
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    (first, _) = traces.named("transaction")
    trace_id = f"{context_of(first).trace_id:032x}"
    written = f"traceparent LIKE '00-{trace_id}-%' AND headers->>'baggage' = 'request=1'"
    assert (inbox.count("outbox.message"), inbox.count("outbox.message", written)) == (1, 1)


def test_the_page_about_traces(inbox: InboxStage) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/trace-messages.md").read_text(encoding="utf-8")
    send, consume = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    kafka = {"bootstrap.servers": inbox.bootstrap_servers}
    with psycopg.connect(inbox.dsn) as conn, Traces().tracer.start_as_current_span("transaction"):
        names: dict[str, Any] = {"conn": conn, "dsn": inbox.dsn, "kafka": kafka, "listener": apply}
        for block in (send, consume):
            exec(compile(block, "trace-messages.md", "exec"), names)
    assert names["consumer"].member.group == "points"
    assert inbox.count("outbox.message", "traceparent IS NOT NULL") == 1
