"""OpenTelemetry: the trace of the transaction that sends a message goes on in the listener that gets it.

    Outbox("shop", tracing=OpenTelemetry())
    PushConsumer("points", …, tracing=OpenTelemetry())

It needs `outbox-kafka[opentelemetry]`, which is the API alone; the SDK and its exporters are the application's.
Names of spans and attributes follow the semantic conventions for messaging, whose version is in `SCHEMA`.

`send` makes a span `create TOPIC` below the current one, and its context goes with the message: `traceparent` in its
column, all other headers of the propagator, such as `tracestate` and `baggage`, next to the message's own. The relay
hands headers on. A message that has a trace context already keeps it. Nothing about traces can refuse a message.

A listener runs in a span `process TOPIC`. It links to the context of each of its messages. For a single message that
context is the parent, too, so that both ends are one trace; a batch has many, so its span begins a trace.

No span holds a key, a body, or the text of an exception: PostgreSQL's errors quote rows.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from outbox.errors import InvalidMessageError
from outbox.extras import needs
from outbox.message import Message
from outbox.tracing import Consumed, Failed
from outbox.wire import TRACEPARENT

with needs("opentelemetry"):
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue

log = logging.getLogger("outbox.opentelemetry")
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The semantic conventions that names follow; those for messaging are not stable yet."""
_BAGGAGE = "baggage"


class OpenTelemetry:
    """Makes spans of sends and of listeners; any number of outboxes and consumers may share one."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        exception_text: bool = False,
    ) -> None:
        """Choose what makes spans, and what writes and reads headers.

        Args:
            tracer_provider: the global one if None, also if that is set later.
            propagator: the global one if None.
            exception_text: Whether spans hold the text of an exception. It may quote a body.
        """
        self._tracer = trace.get_tracer("outbox", tracer_provider=tracer_provider, schema_url=SCHEMA)
        self._chosen = propagator
        self._exception_text = exception_text

    def created(self, message: Message) -> Message:
        """Return the message with the headers of a new span; the same message if no trace runs, or it has one."""
        if not trace.get_current_span().get_span_context().is_valid or self._has_context(message):
            return message
        attributes = _attributes("create", message.topic)
        if message.message_id is not None:
            attributes["messaging.message.id"] = str(message.message_id)
        span = self._tracer.start_span(
            f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        headers: dict[str, str] = {}
        self._propagator.inject(headers, trace.set_span_in_context(span))
        span.end()
        traceparent = headers.pop(TRACEPARENT, None)
        try:
            return replace(message, traceparent=traceparent, headers={**headers, **(message.headers or {})})
        except InvalidMessageError as error:
            log.debug("the trace of a message for %s is not sent: %s", message.topic, error)
            return message

    @contextmanager
    def processing(self, group: str, messages: Sequence[Consumed], *, is_batch: bool) -> Iterator[Failed]:
        """Make a span for the messages of one call of a listener, current while it runs."""
        contexts = [self._context_of(message) for message in messages]
        topic = _topic_of(messages)
        attributes = _attributes("process", topic)
        attributes["messaging.consumer.group.name"] = group
        if is_batch:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _attributes_of(messages[0])
        attributes["outbox.attempt"] = 1 + max(message.reconsume_times for message in messages)
        span = self._tracer.start_span(
            "process" if topic is None else f"process {topic}",
            Context() if is_batch else contexts[0],
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(messages, contexts),
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield lambda kind: _fail(span, kind)
            except BaseException as error:
                self._record(span, error)
                raise

    def received(self, group: str, messages: Sequence[Consumed], began_ns: int) -> None:
        """Make a span of a call that returns messages, with a link to the span of each; see `Tracing`."""
        topic = _topic_of(messages)
        attributes = _attributes("receive", topic)
        attributes["messaging.consumer.group.name"] = group
        attributes["messaging.batch.message_count"] = len(messages)
        self._tracer.start_span(
            "receive" if topic is None else f"receive {topic}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(messages, [self._context_of(message) for message in messages]),
            start_time=began_ns,
        ).end()

    @property
    def _propagator(self) -> TextMapPropagator:
        return self._chosen or propagate.get_global_textmap()

    def _has_context(self, message: Message) -> bool:
        """Return whether the application has given the message a trace context."""
        if message.traceparent is not None:
            return True
        own = {name.lower() for name in message.headers or ()}
        return not own.isdisjoint(self._propagator.fields - {_BAGGAGE})

    def _context_of(self, message: Consumed) -> Context:
        """Return the context that came with a message; what cannot be read is as if it were not there."""
        headers: dict[str, str] = {}
        for name, value in message.headers:
            if value is not None:
                headers.setdefault(name.lower(), value.decode(errors="replace"))
        return self._propagator.extract(headers, Context())

    def _record(self, span: Span, error: BaseException) -> None:
        kind = _name_of(error)
        if self._exception_text:
            span.record_exception(error)
        else:
            frames = "".join(traceback.format_tb(error.__traceback__))
            span.add_event("exception", {"exception.type": kind, "exception.stacktrace": frames})
        _fail(span, kind)


def _attributes(operation: str, topic: str | None) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _topic_of(messages: Sequence[Consumed]) -> str | None:
    """Return the topic of all messages; None: they have several."""
    topics = {message.topic for message in messages}
    return topics.pop() if len(topics) == 1 else None


def _links(messages: Sequence[Consumed], contexts: Sequence[Context]) -> list[Link]:
    """Return a link to the context of each message that has one."""
    return [
        Link(context, {"messaging.message.id": str(message.message_id)})
        for message, context in zip(messages, map(_span_context, contexts), strict=True)
        if context.is_valid
    ]


def _attributes_of(message: Consumed) -> dict[str, AttributeValue]:
    return {
        "messaging.message.id": str(message.message_id),
        "messaging.destination.partition.id": str(message.partition),
        "messaging.kafka.offset": message.offset,
    }


def _span_context(context: Context) -> trace.SpanContext:
    return trace.get_current_span(context).get_span_context()


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
