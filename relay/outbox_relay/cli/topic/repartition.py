"""`outbox topic repartition`: let keys go to a topic's new partitions while messages flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import (
    Command,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
    timeout_option,
)
from outbox_relay.cli.topic import following, missing
from outbox_relay.cli.topic.options import topic_argument
from outbox_relay.database import connections, schema
from outbox_relay.operations import registry_changes
from outbox_relay.operations import repartition as operation
from outbox_relay.operations import topics as registry
from outbox_relay.operations.kafka_topics import KafkaTopic, KafkaTopics
from outbox_relay.operations.registry_changes import RelayProgress
from outbox_relay.operations.topics import Registered


@click.command("repartition", cls=Command)
@topic_argument
@click.option(
    "--to",
    "partitions",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="PARTITIONS",
    help="The new pinned count; Kafka has so many already.",
)
@click.option("--dry-run", is_flag=True, help="Check all of it, and show what would be done.")
@timeout_option("How long to wait for the relays; after it they go on, and the command can be repeated.")
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def repartition(
    *,
    name: str,
    partitions: int,
    dry_run: bool,
    timeout: float,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Let a topic's keys go to its new partitions under load, each key in its order, and wait until all relays do.

    Add the partitions in Kafka first. A relay goes over when Kafka has acknowledged everything of the topic that it had
    on the wire, so each message is in the log before the next one of its key is sent. Messages that name their queue
    stay there. A consumer that still has messages in the old partitions may read a newer one of a key first.

    Repeating the command is safe: it waits for the relays that have not gone over yet.

    \b
    Examples:
      kafka-topics.sh --bootstrap-server kafka:9092 --alter --topic orders --partitions 24
      outbox topic repartition orders --to 24 --dry-run
      outbox topic repartition orders --to 24
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        old = registry.get(conn, name)
        found = KafkaTopics(bootstrap_servers, kafka).get(name)
        operation.require_possible(old, found, partitions)
        if dry_run:
            next_one = registry_changes.generation(conn) + (old.partitions != partitions)
            relays = registry_changes.relays(conn, next_one)
            _show_plan(old, found, partitions, relays, as_json=as_json)
            return
        changed = operation.switch(conn, old, partitions)
        if changed != old:
            missing.wake(conn, name)
        if not as_json:
            click.echo(_switched(old, partitions), err=True)
        again = f"outbox topic repartition {name} --to {partitions}"
        relays = following.follow(conn, timeout, "gone over", again, is_quiet=as_json)
    if as_json:
        output.emit_json(_facts(old, found, partitions, relays))
        return
    if not relays:
        click.echo(f"topic {name} has {partitions} partitions; no relay runs, the next one begins with them")
        return
    click.echo(f"topic {name} is published to {partitions} partitions by {_all(len(relays))}")


def _switched(old: Registered, partitions: int) -> str:
    if old.partitions == partitions:
        return f"the registry has {partitions} partitions for {old.name} already"
    return f"the registry has {partitions} partitions for {old.name} now, {old.partitions} before"


def _all(count: int) -> str:
    return "the relay that runs" if count == 1 else f"all {count} relays"


def _show_plan(
    old: Registered, found: KafkaTopic, partitions: int, relays: Sequence[RelayProgress], *, as_json: bool
) -> None:
    if as_json:
        output.emit_json(_facts(old, found, partitions, relays, dry_run=True))
        return
    output.pairs(
        [
            ("topic", old.name),
            ("pinned partitions", old.partitions),
            ("to", partitions),
            ("Kafka partitions", found.partitions),
            ("selector", old.selector or "murmur2 (default)"),
            ("relays to go over", [relay.owner for relay in relays] or "none runs"),
        ]
    )
    click.echo(
        "the registry has this count already; the command only waits for the relays"
        if old.partitions == partitions
        else "nothing was changed: leave --dry-run out to do it"
    )


def _facts(
    old: Registered,
    found: KafkaTopic,
    partitions: int,
    relays: Sequence[RelayProgress],
    *,
    dry_run: bool = False,
) -> dict[str, Any]:
    return {
        "topic": old.name,
        "before": old.partitions,
        "partitions": partitions,
        "kafka_partitions": found.partitions,
        "changed": not dry_run and old.partitions != partitions,
        "dry_run": dry_run,
        "relays": [asdict(relay) for relay in relays],
    }
