"""`outbox relay`: runs the service that publishes."""

from __future__ import annotations

import gc
import signal
from types import FrameType

import click

from outbox_relay import logs
from outbox_relay.cli.options import (
    Group,
    bootstrap_servers_option,
    dsn_option,
    kafka_config_option,
    log_options,
)
from outbox_relay.cli.types import Number
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.lease import LanesHeldError, LeaseLostError
from outbox_relay.publisher.overdue import LEAST_PATIENCE_S, PATIENCE_S
from outbox_relay.publisher.service import Relay, RelayOptions, UnsettledError


@click.group(cls=Group)
def relay() -> None:
    """Publish committed messages to Kafka, in order per key."""


@relay.command()
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@click.option(
    "--lease",
    type=Number(1, 300),
    default=10.0,
    show_default=True,
    envvar="OUTBOX_LEASE",
    show_envvar=True,
    metavar="SECONDS",
    help="How long a dead relay's lanes stay its own.",
)
@click.option(
    "--poll-max",
    type=Number(0.001, 10),
    default=0.02,
    show_default=True,
    envvar="OUTBOX_POLL_MAX",
    show_envvar=True,
    metavar="SECONDS",
    help="Longest pause between two polls when nothing happens (1 ms while there is traffic).",
)
@click.option(
    "--page",
    type=click.IntRange(1, 50_000),
    default=5_000,
    show_default=True,
    envvar="OUTBOX_PAGE",
    show_envvar=True,
    metavar="MESSAGES",
    help="Messages per batch at most.",
)
@click.option(
    "--ack-timeout",
    type=Number(LEAST_PATIENCE_S, 300),
    default=PATIENCE_S,
    show_default=True,
    envvar="OUTBOX_ACK_TIMEOUT",
    show_envvar=True,
    metavar="SECONDS",
    help="How long a partition may acknowledge nothing before the lanes that wait for it stop.",
)
@click.option(
    "--shutdown-timeout",
    type=Number(0, 3600),
    default=30.0,
    show_default=True,
    envvar="OUTBOX_SHUTDOWN_TIMEOUT",
    show_envvar=True,
    metavar="SECONDS",
    help="How long to wait for Kafka's acknowledgements after SIGTERM.",
)
@log_options
def run(
    *,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    lease: float,
    poll_max: float,
    page: int,
    ack_timeout: float,
    shutdown_timeout: float,
    log_format: str,
    log_level: str,
) -> None:
    """Run the relay until SIGTERM or SIGINT.

    It may start before PostgreSQL and Kafka do and outlives their restarts. Kafka settings that would break a promise
    (acks, idempotence, time-outs) are refused. On SIGTERM it settles what is on the
    wire, so that nothing is published twice. Exit codes: 0 stopped, 1 refused or failed, 2 wrong options.

    \b
    Examples:
      outbox relay run
      outbox relay run --kafka-config compression.type=lz4 --log-format json
    """
    logs.setup(log_format, log_level)
    try:
        service = Relay(
            RelayOptions(
                dsn,
                bootstrap_servers,
                kafka=kafka,
                lease=lease,
                poll_max=poll_max,
                page=page,
                ack_timeout=ack_timeout,
                shutdown_timeout=shutdown_timeout,
            )
        )
    except KafkaSettingError as error:
        raise click.UsageError(str(error)) from error

    def stop(number: int, frame: FrameType | None) -> None:
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # What is imported stays for good: a full collection need not walk it.
    gc.collect()
    gc.freeze()
    # A page is hundreds of thousands of tuples and strings that hold no cycles: look for some less often.
    gc.set_threshold(7_000, 20, 20)
    try:
        service.run()
    except (LanesHeldError, LeaseLostError, UnsettledError, KafkaSettingError) as error:
        raise click.ClickException(str(error)) from error
