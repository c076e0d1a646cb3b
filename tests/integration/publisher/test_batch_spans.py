"""Spans of published batches: one for each, with links to what the messages carry; nothing without `--tracing`.

- The producer ends, or the session: the span ends with an error, and another batch with a span has the messages.
- The relay dies: its span is lost with it, and the batch is published again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from outbox import Message, Outbox
from outbox_relay.monitoring.batch_spans import (
    BatchSpan,
    BatchSpans,
    NoExporterError,
    begin_spans,
    exporters_of_environment,
)
from outbox_relay.publisher.finder import RawRow
from outbox_relay.publisher.hands.spans import Traced
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.traces import Traces, context_of, span_ids
from tests.support.waiting import wait_until

END_SESSION = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outbox relay%'
"""


@pytest.fixture
def traces() -> Traces:
    return Traces()


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_batch_is_one_span_with_a_link_to_each_message_that_has_a_trace(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, traces: Traces
) -> None:
    shop = Outbox("shop", tracing=traces.tracing)
    with conn.transaction():
        with traces.tracer.start_as_current_span("request"):
            shop.send_many(conn, [Message(topic, "a", b"1"), Message(topic, "b", b"2")])
        insert(conn, topic, "c", "without a trace")
    spans = BatchSpans(traces.provider)
    with RelayThread(database, bootstrap_servers, begin_span=spans.begin):
        wait_published(conn)
        wait_until(lambda: traces.named(f"send {topic}"), "the span ends")
    [span] = traces.named(f"send {topic}")
    assert span.kind is SpanKind.CLIENT
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.batch.message_count": 3,
    }
    creates = [context_of(each) for each in traces.named(f"create {topic}")]
    assert span_ids([link.context for link in span.links]) == span_ids(creates)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time < span.end_time


def test_links_end_at_their_limit_and_the_count_does_not(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, traces: Traces
) -> None:
    shop = Outbox("shop", tracing=traces.tracing)
    with conn.transaction(), traces.tracer.start_as_current_span("request"):
        shop.send_many(conn, [Message(topic, str(number), b"") for number in range(5)])
    spans = BatchSpans(traces.provider, links=2)
    with RelayThread(database, bootstrap_servers, begin_span=spans.begin):
        wait_until(lambda: traces.named(f"send {topic}"), "the span ends")
    [span] = traces.named(f"send {topic}")
    assert len(span.links) == 2
    assert attributes(span)["messaging.batch.message_count"] == 5


def test_a_session_that_ends_ends_the_spans_of_what_it_did_not_record(
    database: str, bootstrap_servers: str, topic: str, traces: Traces
) -> None:
    spans = BatchSpans(traces.provider)
    begun = 0

    def begin(rows: Sequence[RawRow]) -> Traced:
        nonlocal begun
        begun += 1
        if begun == 1:
            with connect(database) as other:
                other.execute(END_SESSION)
        return spans.begin(rows)

    with RelayThread(database, bootstrap_servers, begin_span=begin):
        with connect(database) as again:
            insert(again, topic, "a", "1")
        wait_until(lambda: len(traces.named(f"send {topic}")) == 2, "the batch is published again")
    first, second = traces.named(f"send {topic}")
    assert first.status.status_code is StatusCode.ERROR
    assert attributes(first)["error.type"] == "not_recorded"
    assert second.status.status_code is StatusCode.UNSET


def test_a_span_of_a_divided_batch_ends_once(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    span = BatchSpan(traces.tracer.start_span("send"))
    span.end()
    span.end("not_recorded")
    assert not caplog.records, "the SDK warns of an end after the end"
    [ended] = traces.named("send")
    assert ended.status.status_code is StatusCode.UNSET


def test_the_environment_chooses_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none")
    assert [type(each).__name__ for each in exporters_of_environment()] == ["ConsoleSpanExporter"]
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(NoExporterError, match="pip install opentelemetry-exporter-otlp-proto-grpc"):
        exporters_of_environment()


def test_spans_are_exported_when_the_command_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    exporter = InMemorySpanExporter()
    with ExitStack() as stack:
        begin_spans(stack, lambda: [exporter]).begin([]).end()
    [span] = exporter.get_finished_spans()
    assert span.resource.attributes["service.name"] == "outbox-relay"


def test_a_relay_without_an_exporter_does_not_start(database: str, bootstrap_servers: str) -> None:
    ran = outbox(
        *("relay", "run", "--tracing"),
        OUTBOX_DSN=database,
        OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers,
        OTEL_TRACES_EXPORTER="zipkin",
    )
    assert ran.code == 2
    assert "--tracing: OTEL_TRACES_EXPORTER: 'zipkin' is not installed" in ran.err


def test_a_relay_that_traces_nothing_does_not_import_opentelemetry() -> None:
    script = (
        "import json, sys, outbox_relay.cli.main, outbox_relay.cli.relay.commands;"
        "print(json.dumps([name for name in sys.modules if name.startswith('opentelemetry')]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []
