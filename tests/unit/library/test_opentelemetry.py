"""Spans of sends and of listeners, without servers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from outbox import Message
from outbox.errors import ListenerError
from outbox.inbox import ConsumeResult
from outbox.inbox.tracing import traced
from outbox.operations.sender import Sender
from outbox.operations.size import record_size
from outbox.operations.topics import MessageType, Topic
from tests.support.traces import Traces, context_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
HEADERS = (("traceparent", TRACEPARENT.encode()), ("tracestate", b"rojo=1"))
OTHER = (("traceparent", f"00-{TRACE[::-1]}-{PARENT}-01".encode()),)


@dataclass
class Record:
    """A message as a consumer gets it."""

    headers: tuple[tuple[str, bytes | None], ...] = ()
    topic: str = "orders"
    partition: int = 3
    offset: int = 7
    reconsume_times: int = 0
    key: bytes = b"secret key"
    body: bytes = b"secret body"
    message_id: UUID = field(default_factory=uuid4)


def remote(state: str = "rojo=1", *, sampled: bool = True) -> NonRecordingSpan:
    """A span of another service."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    entries = [cast("tuple[str, str]", tuple(state.split("=")))]
    return NonRecordingSpan(SpanContext(int(TRACE, 16), int(PARENT, 16), True, flags, TraceState(entries)))


def created(traces: Traces, message: Message, **options: Any) -> Message:
    """What is written of a message that is sent in the trace of another service."""
    with trace.use_span(remote(**options)):
        return traces.tracing.created(message)


def test_a_message_gets_the_context_of_a_create_span_below_the_current_one() -> None:
    traces, number = Traces(), uuid4()
    message = Message(
        "orders", "secret key", "secret body", headers={"a": "b"}, tags=["x"], message_id=number
    )
    sent = created(traces, message)
    (span,) = traces.named("create orders")
    assert sent.traceparent == f"00-{TRACE}-{context_of(span).span_id:016x}-01"
    assert sent.headers == {"a": "b", "tracestate": "rojo=1"}
    assert (sent.key, sent.body, sent.tags, sent.message_id) == (message.key, message.body, ("x",), number)
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == int(PARENT, 16)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(number),
    }
    assert "secret" not in traces.text()


def test_a_trace_that_is_not_sampled_is_carried_and_exports_nothing() -> None:
    traces = Traces()
    sent = created(traces, Message("orders"), sampled=False)
    assert sent.traceparent is not None
    assert sent.traceparent.startswith(f"00-{TRACE}-")
    assert sent.traceparent.endswith("-00")
    assert traces.text() == ""


def test_baggage_goes_with_the_message() -> None:
    token = attach(baggage.set_baggage("tenant", "a b"))
    try:
        assert (created(Traces(), Message("orders")).headers or {})["baggage"] == "tenant=a+b"
    finally:
        detach(token)


@pytest.mark.parametrize(
    "own",
    [{"traceparent": TRACEPARENT}, {"headers": {"tracestate": "a=b"}}, {"headers": {"Tracestate": None}}],
)
def test_a_message_with_a_trace_of_its_own_stays_as_it_is(own: dict[str, Any]) -> None:
    traces, message = Traces(), Message("orders", **own)
    assert created(traces, message) is message
    assert traces.text() == ""


def test_without_a_trace_a_message_stays_as_it_is() -> None:
    traces, message = Traces(), Message("orders")
    assert traces.tracing.created(message) is message
    assert traces.text() == ""


def test_headers_that_kafka_would_refuse_leave_the_message_without_a_trace() -> None:
    class Odd:
        fields = frozenset({"outbox-trace"})

        def inject(self, carrier: dict[str, str], *_: Any) -> None:
            carrier["outbox-trace"] = "1"

    traces, message = Traces(), Message("orders")
    traces.tracing._chosen = Odd()  # type: ignore[assignment]
    assert created(traces, message) is message


def test_a_message_that_just_fits_is_sent_without_its_trace() -> None:
    traces = Traces()
    message = Message("orders", body="x" * 1000)
    sender = Sender("shop", tracing=traces.tracing)
    written = []
    for room in (0, 200):
        limit = record_size(message, "shop") + room
        topic = Topic("orders", MessageType.MIXED, 4, None, limit)
        with trace.use_span(remote()):
            admitted = sender.admit(message, topic, ordered=False)
        assert admitted.message is message, "what an idempotency key stands for has no trace"
        written.append(any(TRACE in str(value) for value in admitted.row))
    assert written == [False, True]


def call(traces: Traces, result: Any, messages: Sequence[Record], *, is_batch: bool) -> Any:
    """Call a listener that returns, or raises, something."""

    def listener(*_: Any) -> Any:
        traces.tracer.start_span("inside").end()
        if isinstance(result, BaseException):
            raise result
        return result

    called = traced(listener, traces.tracing, "points", is_batch=is_batch)
    return called(None, list(messages) if is_batch else messages[0])


def test_a_listener_runs_in_a_span_below_and_linked_to_the_context_of_its_message() -> None:
    traces, record = Traces(), Record((*HEADERS, *OTHER), reconsume_times=2)
    assert call(traces, ConsumeResult.SUCCESS, [record], is_batch=False) is ConsumeResult.SUCCESS
    (span,), (inside,) = traces.named("process orders"), traces.named("inside")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert [link.context for link in span.links] == [span.parent]
    assert inside.parent == context_of(span)
    assert context_of(span).trace_state.get("rojo") == "1"
    assert (span.kind, span.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 7,
        "messaging.consumer.group.name": "points",
        "messaging.message.id": str(record.message_id),
        "outbox.attempt": 3,
    }
    assert "secret" not in traces.text()


@pytest.mark.parametrize("headers", [(), (("traceparent", b"\xff nonsense"),), (("traceparent", None),)])
def test_a_message_without_a_readable_context_begins_a_trace(headers: Any) -> None:
    traces = Traces()
    with traces.tracer.start_as_current_span("somebody else's"):
        call(traces, ConsumeResult.SUCCESS, [Record(headers)], is_batch=False)
    (span,) = traces.named("process orders")
    assert (span.parent, list(span.links)) == (None, [])


def test_a_batch_has_one_span_of_a_trace_of_its_own_with_a_link_to_each_message() -> None:
    traces, records = Traces(), [Record(HEADERS), Record(OTHER), Record()]
    assert call(traces, ConsumeResult.SUCCESS, records, is_batch=True) == [ConsumeResult.SUCCESS] * 3
    (span,) = traces.named("process orders")
    assert span.parent is None
    assert [link.context.trace_id for link in span.links] == [int(TRACE, 16), int(TRACE[::-1], 16)]
    assert [dict(link.attributes or {}) for link in span.links] == [
        {"messaging.message.id": str(each.message_id)} for each in records[:2]
    ]
    attributes = span.attributes or {}
    assert attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes
    call(traces, ConsumeResult.SUCCESS, [Record(), Record(topic="refunds")], is_batch=True)
    (mixed,) = traces.named("process")
    assert "messaging.destination.name" not in (mixed.attributes or {})


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (ConsumeResult.SUCCESS, None),
        (ConsumeResult.DISCARD, None),
        (ConsumeResult.RECONSUME_LATER, "RECONSUME_LATER"),
        (ValueError("secret body"), "ValueError"),
        (SystemExit("secret body"), "SystemExit"),
        (None, "ListenerError"),
    ],
)
def test_a_failed_listener_has_a_span_with_an_error_and_no_text(
    result: Any, kind: str | None, is_batch: bool
) -> None:
    traces = Traces()
    raises = isinstance(result, BaseException) or (result is None and is_batch)
    raised = (ValueError, SystemExit, ListenerError)
    with pytest.raises(raised) if raises else nullcontext():
        call(traces, result, [Record()], is_batch=is_batch)
    (span,) = traces.named("process orders")
    found = str((span.attributes or {}).get("error.type", "")).rpartition(".")[2]
    assert found == (kind or "")
    assert span.status.status_code is (StatusCode.UNSET if kind is None else StatusCode.ERROR)
    assert "secret" not in traces.text()
    assert not trace.get_current_span().get_span_context().is_valid, "the span is not current any more"


def test_the_text_of_an_exception_is_recorded_on_request() -> None:
    traces = Traces()
    traces.tracing._exception_text = True
    with pytest.raises(ValueError, match="no such order"):
        call(traces, ValueError("no such order"), [Record()], is_batch=False)
    (span,) = traces.named("process orders")
    assert [event.name for event in span.events] == ["exception"]
    assert "no such order" in traces.text()
