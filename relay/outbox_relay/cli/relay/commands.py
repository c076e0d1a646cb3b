"""`outbox relay`: runs the service that publishes, lists its instances and drains them."""

from __future__ import annotations

import gc
import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click

from outbox_relay.cli.monitoring import http_options
from outbox_relay.cli.options import (
    CommandGroup,
    bootstrap_servers_option,
    kafka_config_option,
    log_options,
)
from outbox_relay.cli.relay import leading
from outbox_relay.cli.relay.alarm import alarm_options, alarm_service
from outbox_relay.cli.relay.databases import chosen, databases_options
from outbox_relay.cli.relay.monitored import RELAY_ROLE, monitored
from outbox_relay.cli.relay.retain import retain_options, retention
from outbox_relay.cli.relay.traced import traced, tracing_option
from outbox_relay.cli.types import Number, ShardType
from outbox_relay.database.rights import needing
from outbox_relay.publisher.hands.silence import LEAST_PATIENCE_S, PATIENCE_S
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay, UnsettledError
from outbox_relay.publisher.several import Relays
from outbox_relay.publisher.shard import Guarantee, Shard
from outbox_relay.publisher.wal import PublishAfter
from outbox_relay.text import logs


@click.group(cls=CommandGroup)
def relay() -> None:
    """Publish committed messages to Kafka, in order per key; list and drain the relays that do."""


@relay.command()
@databases_options
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
    help="Longest pause between two polls when nothing happens (1 ms while there is traffic; four times "
    "as long after a minute without messages, up to 0.1 s).",
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
    help="How long a partition may acknowledge nothing before it is held.",
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
@click.option(
    "--publish-after",
    type=click.Choice([str(one) for one in PublishAfter]),
    default=str(PublishAfter.COMMITTED),
    show_default=True,
    envvar="OUTBOX_PUBLISH_AFTER",
    show_envvar=True,
    help="What a message waits for: its commit, or also that a synchronous standby has it.",
)
@click.option(
    "--delivery",
    type=click.Choice([str(one) for one in Guarantee]),
    default=str(Guarantee.AT_LEAST_ONCE),
    show_default=True,
    envvar="OUTBOX_DELIVERY",
    show_envvar=True,
    help="What is promised about each message. exactly-once uses Kafka's transactions: consumers set "
    "isolation.level=read_committed.",
)
@click.option(
    "--shard",
    type=ShardType(),
    default="1/1",
    show_default=True,
    envvar="OUTBOX_SHARD",
    show_envvar=True,
    metavar="I/N",
    help="Lead the I-th of N parts of the lanes only; each part needs relays of its own.",
)
@tracing_option
@retain_options
@alarm_options
@http_options()
@log_options
def run(
    *,
    dsns: tuple[str, ...],
    config: Path | None,
    bootstrap_servers: str,
    kafka: dict[str, str],
    lease: float,
    poll_max: float,
    page: int,
    ack_timeout: float,
    shutdown_timeout: float,
    publish_after: str,
    delivery: str,
    shard: Shard,
    tracing: bool,
    http: tuple[str, int] | None,
    livez: tuple[str, int] | None,
    log_format: str,
    log_level: str,
    **others: Any,
) -> None:
    """Run the relay until SIGTERM or SIGINT.

    Of the relays of a database one leads and publishes; the others stand by, and one of them takes over when it ends.
    It may start before PostgreSQL and Kafka do and outlives their restarts. Kafka settings that would break a promise
    (acks, idempotence, time-outs) are refused. On SIGTERM it settles what is on the
    wire, so that nothing is published twice. Exit codes: 0 stopped, 1 refused or failed, 2 wrong options.

    With several databases one process runs a relay for each, and names the database in each line of its log. One that
    fails starts again while the others go on; the exit code is 1 if one had failed at the end.

    \b
    Examples:
      outbox relay run
      outbox relay run --dsn postgresql://db1/shop --dsn postgresql://db2/billing
      outbox relay run --kafka-config compression.type=lz4 --log-format json
      outbox relay run --retain 30d --retain-without-warehouse
      outbox relay run --http 9464 --tracing
      outbox relay run --shard 1/2
      outbox relay run --delivery exactly-once
    """
    logs.setup(log_format, log_level)
    begin_span = traced() if tracing else None
    databases = {
        name: RelayOptions(
            dsn,
            bootstrap_servers,
            kafka=kafka,
            lease=lease,
            poll_max=poll_max,
            page=page,
            ack_timeout=ack_timeout,
            shutdown_timeout=shutdown_timeout,
            publish_after=PublishAfter(publish_after),
            delivery=Guarantee(delivery),
            shard=shard,
            begin_span=begin_span,
        )
        for name, dsn in chosen(dsns, config).items()
    }
    if len(databases) > 1 and others["retain_dsn"] is not None:
        raise click.UsageError(
            "--retain-dsn names one database; with several, give each --dsn a user that may drop"
        )
    beside = []
    for name, options in databases.items():
        with (
            logs.context(**({"database": name} if len(databases) > 1 else {})),
            needing(RELAY_ROLE, options.dsn),
        ):
            beside += [retention(options.dsn, others), alarm_service(options.dsn, others)]
    try:
        service = Relays(databases) if len(databases) > 1 else Relay(*databases.values())
    except KafkaSettingError as error:
        raise click.UsageError(str(error)) from error

    def stop(number: int, frame: FrameType | None) -> None:
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # What is imported stays for good: a full collection need not walk it.
    gc.collect()
    gc.freeze()
    # What is on its way is some hundred thousand objects that hold no cycles: look for some when there are more.
    gc.set_threshold(200_000, 5, 5)
    try:
        with ExitStack() as stack:
            if http is not None or livez is not None:
                monitored(stack, http, livez, databases, service)
            for each in beside:
                stack.enter_context(each)
            service.run()
    except (UnsettledError, KafkaSettingError) as error:
        raise click.ClickException(str(error)) from error


relay.add_command(leading.ls)
relay.add_command(leading.drain)
