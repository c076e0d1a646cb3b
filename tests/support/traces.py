"""A tracer that keeps its spans in memory, and what tests read of them."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from outbox.opentelemetry import OpenTelemetry


class Traces:
    """The spans of one test: no global state of OpenTelemetry is set."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")
        self.tracing = OpenTelemetry(self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name that have ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def text(self) -> str:
        """Return all that was exported."""
        return "\n".join(span.to_json() for span in self._exporter.get_finished_spans())


def context_of(span: ReadableSpan) -> SpanContext:
    """Return what identifies a span."""
    context = span.get_span_context()
    assert context is not None
    return context


def span_ids(contexts: Sequence[SpanContext | None]) -> list[tuple[int, int]]:
    """Return trace and span of each context, sorted."""
    return sorted((each.trace_id, each.span_id) for each in contexts if each is not None)
