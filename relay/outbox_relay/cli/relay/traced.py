"""`outbox relay run --tracing`."""

from __future__ import annotations

from contextlib import ExitStack

import click

from outbox_relay.publisher.hands.spans import Begin

tracing_option = click.option(
    "--tracing",
    is_flag=True,
    envvar="OUTBOX_TRACING",
    show_envvar=True,
    help="Make a span for each batch, by OpenTelemetry, whose environment variables state where they go.",
)


def traced() -> Begin:
    """Return what begins the span of a batch; what is left is exported when the command ends.

    Raises:
        click.UsageError: OpenTelemetry, its SDK or an exporter is missing.
    """
    try:
        from outbox_relay.monitoring import batch_spans  # noqa: PLC0415  (imports OpenTelemetry)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"--tracing: {error}") from error
    try:
        return batch_spans.begin_spans(click.get_current_context().with_resource(ExitStack())).begin
    except batch_spans.NoExporterError as error:
        raise click.UsageError(f"--tracing: {error}") from error
