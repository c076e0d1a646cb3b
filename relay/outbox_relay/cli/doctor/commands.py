"""`outbox doctor`: whether a deployment would work, with what repairs each finding."""

from __future__ import annotations

import click

from outbox_relay.cli.checks import show_and_exit
from outbox_relay.cli.options import (
    Command,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.cli.types import Number
from outbox_relay.operations.doctor import DoctorOptions, examine


@click.command(cls=Command)
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@click.option(
    "--half-message",
    "within",
    type=Number(1, 600),
    metavar="SECONDS",
    help="Also send a half message, and wait so many seconds for a checker to find it. It is rolled back.",
)
@json_option
def doctor(
    *, dsn: str, bootstrap_servers: str | None, kafka: dict[str, str], within: float | None, as_json: bool
) -> None:
    """Check a whole deployment: the way to PostgreSQL, the schema, Kafka, and what is wrong now.

    Clock, TLS, rights, a pooler that divides sessions, what outbox db check reads, what keeps VACUUM from old
    rows, brokers and registered topics, and the problems of outbox status. Each finding comes with what repairs it.

    Nothing is changed, unless --half-message is given: it registers the group outbox-doctor, and needs the roles
    outbox_operator and outbox_producer.

    \b
    Examples:
      outbox doctor
      outbox doctor --bootstrap-servers broker:9092 --half-message 30

    Exit codes: 0 fit, warnings included; 1 something failed; 2 wrong options.
    """
    found = list(examine(dsn, DoctorOptions(bootstrap_servers, kafka, within)))
    show_and_exit(dsn, found, as_json=as_json)
