"""`outbox metrics`: which metrics there are, alert rules, a dashboard, and a process that serves a database's."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType

import click

from outbox.inbox.metrics import METRICS as MEMBER_METRICS
from outbox_relay.cli import output
from outbox_relay.cli.monitoring import http_options
from outbox_relay.cli.monitoring import serve as serve_pages
from outbox_relay.cli.options import (
    CommandGroup,
    dsn_option,
    json_option,
    kafka_config_option,
    log_options,
    optional_bootstrap_servers_option,
)
from outbox_relay.cli.types import Number
from outbox_relay.database import connections
from outbox_relay.monitoring import dashboard as grafana
from outbox_relay.monitoring.alerts import ALERTS, rule_file
from outbox_relay.monitoring.catalogue import DATABASE, METRICS
from outbox_relay.monitoring.figures import READ_EVERY_S, Figures, observe_figures
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations.consumer_lag import KafkaOffsets
from outbox_relay.text import logs


@click.group(cls=CommandGroup)
def metrics() -> None:
    """Metrics for Prometheus: list them, with alert rules and a dashboard; serve those of a database.

    `outbox relay run --http PORT` and `outbox checker run --http PORT` serve their own.
    """


@metrics.command("ls")
@json_option
def ls(*, as_json: bool) -> None:
    """List every metric: its kind, its labels, its meaning."""
    rows = [
        {"name": name, "kind": one.kind, "labels": [DATABASE, *one.labels], "meaning": one.text}
        for name, one in METRICS.items()
    ]
    rows += [
        {"name": name, "kind": one.kind, "labels": ["group", *one.labels], "meaning": one.text}
        for name, one in MEMBER_METRICS.items()
    ]
    if as_json:
        output.emit_json(rows)
        return
    for row in rows:
        click.echo(f"{row['name']}{{{','.join(row['labels'])}}}  {row['kind']}\n    {row['meaning']}")


@metrics.command("alerts")
@click.option(
    "--runbooks",
    default="docs",
    show_default=True,
    metavar="PLACE",
    help="Where this documentation is: a URL or a path, for the link of each rule to its runbook.",
)
@json_option
def alerts(*, runbooks: str, as_json: bool) -> None:
    """Print alert rules for Prometheus.

    Copy the file, and change limits that do not fit your service: they are starting points. --json prints the rules as
    a list, for other systems of alerts.

    \b
    Examples:
      outbox metrics alerts > /etc/prometheus/rules/outbox.yml
      outbox metrics alerts --runbooks https://wiki.example.com/outbox
    """
    if as_json:
        output.emit_json([{**rule._asdict(), "runbook": f"{runbooks}/{rule.runbook}"} for rule in ALERTS])
        return
    click.echo(rule_file(runbooks.rstrip("/")), nl=False)


@metrics.command("dashboard")
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON that Grafana imports.

    It has a variable for the source of the data and one for the databases.

    \b
    Examples:
      outbox metrics dashboard > /etc/grafana/dashboards/outbox.json
    """
    output.emit_json(grafana.dashboard())


@metrics.command()
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@http_options(required=True)
@click.option(
    "--every",
    type=Number(1, 3600),
    default=READ_EVERY_S,
    show_default=True,
    envvar="OUTBOX_METRICS_EVERY",
    show_envvar=True,
    metavar="SECONDS",
    help="How often the database is read; less often where that takes long.",
)
@log_options
def serve(
    *,
    dsn: str,
    bootstrap_servers: str | None,
    kafka: dict[str, str],
    http: tuple[str, int],
    livez: tuple[str, int] | None,
    every: float,
    log_format: str,
    log_level: str,
) -> None:
    """Serve the metrics of a database until SIGTERM or SIGINT.

    For a database of consumers, where no relay runs; a relay with --http serves those of its own database. With
    --bootstrap-servers the lag of consumer groups is among them. Needs the role outbox_reader.

    \b
    Examples:
      outbox metrics serve --http 9465
      outbox metrics serve --http 0.0.0.0:9465 --bootstrap-servers broker:9092
    """
    logs.setup(log_format, log_level)
    offsets = KafkaOffsets(bootstrap_servers, kafka) if bootstrap_servers else None
    figures = Figures(connections.name(dsn), dsn, offsets, every=every)
    monitoring = Monitoring()
    observe_figures(monitoring, figures, offered=lambda: True)
    monitoring.ready.append(figures.ready)
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with ExitStack() as stack:
        serve_pages(stack, monitoring, http, livez)
        stack.enter_context(figures)
        stopping.wait()
