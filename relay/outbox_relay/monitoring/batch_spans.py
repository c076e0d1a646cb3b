"""Spans of published batches, for OpenTelemetry: `outbox relay run --tracing`.

A batch is one span, from the first message that is given to Kafka until all are acknowledged and recorded. It begins
a trace, because a batch has many causes, and links to the span in which each message was created. It is of kind
CLIENT, as the conventions for messaging have it where the context of another span goes with the message.

Only this module imports OpenTelemetry, and only `--tracing` imports this module. Without it a batch costs one
comparison, a message nothing. Links are made for the first messages that carry a context, as many as the SDK keeps of
a span.

The relay dies: the span is lost with the process, the batch is published again, in another span. A batch fails, or its
session ends: the span ends with the error, and the messages are in another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from typing import Any

from outbox import wire
from outbox.extras import needs
from outbox.opentelemetry import SCHEMA
from outbox_relay.publisher.finder import FIELDS, MESSAGE_ID, TOPIC, RawRow
from outbox_relay.publisher.records import decode_headers

with needs("opentelemetry"):
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

TRACEPARENT, HEADER_TEXT = FIELDS.index("traceparent"), FIELDS.index("headers")
LINKS = 128
"""How many links the SDK keeps of a span unless OTEL_SPAN_LINK_COUNT_LIMIT states another number."""
GROUP = "opentelemetry_traces_exporter"
"""The entry points by which packages of exporters name themselves."""
OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The exporter `otlp` by OTEL_EXPORTER_OTLP_PROTOCOL."""


class NoExporterError(Exception):
    """Traces cannot be exported; the text names what to install or to set."""


class BatchSpan:
    """The span of one batch."""

    def __init__(self, span: Span) -> None:
        self._span: Span | None = span

    def end(self, error: str | None = None) -> None:
        """End it, once; `error`: why it is not recorded."""
        span, self._span = self._span, None
        if span is None:
            return
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()


class BatchSpans:
    """Begins a span for each batch; relays of several databases share one."""

    def __init__(self, provider: TracerProvider | None = None, links: int | None = None) -> None:
        """Choose what makes the spans.

        Args:
            provider: the global one if None.
            links: how many a span has at most; None: OTEL_SPAN_LINK_COUNT_LIMIT, or 128.
        """
        self._tracer = trace.get_tracer("outbox.relay", tracer_provider=provider, schema_url=SCHEMA)
        self._links = int(os.environ.get("OTEL_SPAN_LINK_COUNT_LIMIT") or LINKS) if links is None else links

    def begin(self, rows: Sequence[RawRow]) -> BatchSpan:
        """Begin the span of messages that are given to Kafka together; `rows`: the messages, at least one."""
        topics = {row[TOPIC] for row in rows}
        attributes: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(rows),
        }
        name = "send"
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topics.pop()
            name = f"send {attributes['messaging.destination.name']}"
        span = self._tracer.start_span(
            name, Context(), kind=SpanKind.CLIENT, attributes=attributes, links=self._links_of(rows)
        )
        return BatchSpan(span)

    def _links_of(self, rows: Iterable[RawRow]) -> list[Link]:
        propagator, links = propagate.get_global_textmap(), list[Link]()
        for row in rows:
            if len(links) >= self._links:
                break
            carrier = {name.lower(): value for name, value in _headers(row)}
            context = trace.get_current_span(propagator.extract(carrier, Context())).get_span_context()
            if context.is_valid:
                links.append(
                    Link(
                        context,
                        {"messaging.message.id": row[MESSAGE_ID], "messaging.destination.name": row[TOPIC]},
                    )
                )
        return links


def _headers(row: RawRow) -> Iterable[tuple[str, str]]:
    if row[TRACEPARENT] is not None:
        yield wire.TRACEPARENT, row[TRACEPARENT]
    if row[HEADER_TEXT] is not None:
        for name, value in decode_headers(row[HEADER_TEXT]):
            if value is not None:
                yield name, value if isinstance(value, str) else value.decode(errors="replace")


def begin_spans(stack: ExitStack, exporters: Callable[[], list[Any]] | None = None) -> BatchSpans:
    """Return what begins spans, by the provider of `opentelemetry-instrument`, or else by the environment.

    Args:
        stack: exports what is left, when it is closed.
        exporters: makes the exporters; those of OTEL_TRACES_EXPORTER if None.

    Raises:
        NoExporterError: the SDK or an exporter is missing.
    """
    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider):
        return BatchSpans(provider)
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (a process that has a provider needs none)
        from opentelemetry.sdk.trace import TracerProvider as Provider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise NoExporterError(
            "--tracing needs OpenTelemetry's SDK and an exporter; run: pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http"
        ) from error
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    made = Provider(resource=Resource.create({} if is_named else {"service.name": "outbox-relay"}))
    for exporter in (exporters or exporters_of_environment)():
        made.add_span_processor(BatchSpanProcessor(exporter))
    stack.callback(made.shutdown)
    return BatchSpans(made)


def exporters_of_environment() -> list[Any]:
    """Return the exporters that OTEL_TRACES_EXPORTER names, `otlp` if it does not.

    Raises:
        NoExporterError: one is not installed.
    """
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    made = []
    for given in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(","):
        name = given.strip()
        if name == "none":
            continue
        wanted = OTLP.get(protocol, protocol) if name == "otlp" else name
        found = next(iter(entry_points(group=GROUP, name=wanted)), None)
        if found is None:
            package = f"opentelemetry-exporter-{wanted.replace('_', '-')}"
            raise NoExporterError(
                f"OTEL_TRACES_EXPORTER: {name!r} is not installed; run: pip install {package}, or set it to one of: "
                f"{', '.join(sorted(each.name for each in entry_points(group=GROUP)))}, none"
            )
        made.append(found.load()())
    return made
