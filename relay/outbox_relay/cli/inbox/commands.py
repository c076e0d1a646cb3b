"""`outbox inbox`: the days of a consumer's inbox, and dropping those that Kafka cannot deliver again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import click

from outbox_relay.cli import output
from outbox_relay.cli.inbox import render
from outbox_relay.cli.options import (
    CommandGroup,
    add_options,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers
from outbox_relay.operations.inbox_days import DayRules
from outbox_relay.operations.inbox_drop import DayResult, InboxDropping, only_drop, preview
from outbox_relay.operations.kafka_logs import KafkaLogs
from outbox_relay.text import durations

F = TypeVar("F", bound=Callable[..., Any])
NO_PROOF = (
    "no Kafka broker given: use --bootstrap-servers, or set OUTBOX_BOOTSTRAP_SERVERS, so that it is proven that Kafka "
    "cannot deliver the messages again; to drop by age alone: --without-kafka"
)
_OPTIONS = (
    click.option(
        "--older-than",
        metavar="DURATION",
        default="7d",
        show_default=True,
        help="The retention: its messages were born and handled so long ago. Longer than a hold may last.",
    ),
    optional_bootstrap_servers_option,
    kafka_config_option,
    click.option(
        "--without-kafka",
        is_flag=True,
        help="By age alone, whatever Kafka still has: for topics that are compacted or kept for ever.",
    ),
)


@click.group(cls=CommandGroup)
def inbox() -> None:
    """See which days of a consumer's inbox may be dropped, and drop them.

    A day goes when it is old enough, nothing of it is parked, Kafka's logs start behind its last record in each
    partition, and no group that has rows of it has messages of that time left to read. A message of a dropped day
    that comes again becomes a dead letter; it is not applied twice.
    """


def _rule_options(command: F) -> F:
    return add_options(command, _OPTIONS)


def _kafka(servers: str | None, settings: Mapping[str, str], *, without_kafka: bool) -> KafkaLogs | None:
    if servers is None or without_kafka:
        return None
    return KafkaLogs(servers, settings)


@inbox.command()
@_rule_options
@dsn_option
@json_option
def ls(
    *,
    older_than: str,
    bootstrap_servers: str | None,
    kafka: Mapping[str, str],
    without_kafka: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """List the days of the inbox and what keeps each from being dropped.

    Reads each day that is old enough, which takes about a second per million messages. Changes nothing, and needs the
    role outbox_reader.
    """
    age = durations.duration("--older-than", older_than)
    logs = _kafka(bootstrap_servers, kafka, without_kafka=without_kafka)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        found = list(preview(conn, DayRules(conn, age=age, kafka=logs, by_age=without_kafka)))
    if as_json:
        output.emit_json({"days": [render.fields(each) for each in found]})
        return
    render.table(found)


@inbox.command()
@_rule_options
@click.option("--dry-run", is_flag=True, help="Only list what would be dropped; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before a drop by age alone.")
@click.option(
    "--wait",
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How long to wait for listeners and locks in the way; consumers go on meanwhile.",
)
@dsn_option
@json_option
def drop(
    *,
    older_than: str,
    bootstrap_servers: str | None,
    kafka: Mapping[str, str],
    without_kafka: bool,
    dry_run: bool,
    yes: bool,
    wait: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Drop the days that may go; exit with 1 when one that is old enough has to stay.

    Consumers go on meanwhile. It may be killed at any time, and run again. Needs the owner of the tables.

    \b
      outbox inbox drop --dry-run
      outbox inbox drop --older-than 14d
      outbox inbox drop --older-than 90d --without-kafka --yes
    """
    age = durations.duration("--older-than", older_than)
    patience = durations.duration("--wait", wait).total_seconds()
    if bootstrap_servers is None and not without_kafka:
        raise click.UsageError(NO_PROOF)
    if without_kafka and not (yes or dry_run):
        click.confirm(
            f"Days older than {durations.short(age)} will be dropped, whatever Kafka can still deliver; what it "
            "delivers of them becomes dead letters. Go on?",
            abort=True,
            err=True,
        )
    logs = _kafka(bootstrap_servers, kafka, without_kafka=without_kafka)
    found: list[DayResult] = []
    with connections.connect(dsn, application_name="outbox inbox") as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        alone = nullcontext() if dry_run else only_drop(conn)
        with alone:
            rules = DayRules(conn, age=age, kafka=logs, by_age=without_kafka)
            dropping = preview(conn, rules) if dry_run else InboxDropping(conn, rules, wait=patience).drop()
            for result in dropping:
                found.append(result)
                if not as_json and result.outcome != "kept":
                    click.echo(render.line(result))
    refused = sum(1 for result in found if result.outcome == "refused")
    if as_json:
        output.emit_json(
            {
                "older_than": age.total_seconds(),
                "dry_run": dry_run,
                "without_kafka": without_kafka,
                "refused": refused,
                "days": [render.fields(result) for result in found],
            }
        )
    else:
        click.echo(render.summary(found))
    sys.exit(1 if refused else 0)
