"""`outbox topic repartition`: let keys go to a topic's new partitions while messages flow."""

from __future__ import annotations

import time
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
from outbox_relay.cli.topic.held import HeldMove
from outbox_relay.cli.topic.options import topic_argument
from outbox_relay.database import connections, schema
from outbox_relay.operations import held_move, registry_changes
from outbox_relay.operations import repartition as operation
from outbox_relay.operations import topics as registry
from outbox_relay.operations.consumer_lag import KafkaOffsets
from outbox_relay.operations.group_positions import GroupProgress
from outbox_relay.operations.kafka_topics import KafkaTopic, KafkaTopics
from outbox_relay.operations.registry_changes import RelayProgress
from outbox_relay.operations.topics import Registered
from outbox_relay.text.formatting import printable


def _group_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse names that no consumer group has."""
    for name in value:
        if not name.strip() or "\0" in name:
            raise click.BadParameter(f"{name!r} is not a consumer group's name", ctx, param)
    return value


@click.command("repartition", cls=Command)
@topic_argument
@click.option(
    "--to",
    "partitions",
    type=click.IntRange(1, 100_000),
    metavar="PARTITIONS",
    help="The new pinned count; Kafka has so many already.",
)
@click.option(
    "--wait-for-group",
    "groups",
    multiple=True,
    metavar="GROUP",
    callback=_group_names,
    help="Hold the topic until this consumer group has read its partitions; repeatable.",
)
@click.option(
    "--abort", is_flag=True, help="Let a topic go on that is held for consumer groups, with its old count."
)
@click.option("--dry-run", is_flag=True, help="Check all of it, and show what would be done.")
@timeout_option("How long to wait for groups and relays; after it the command can be repeated, and goes on.")
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def repartition(
    *,
    name: str,
    partitions: int | None,
    groups: tuple[str, ...],
    abort: bool,
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

    With --wait-for-group it cannot: the topic is held as by outbox topic pause, until the groups have committed all
    that its partitions had then. Its messages wait meanwhile, in order, and all others flow.

    Repeating the command is safe: it goes on where it was. Before the topic has gone over, --abort puts it back.

    \b
    Examples:
      kafka-topics.sh … --alter --topic orders --partitions 24
      outbox topic repartition orders --to 24 --dry-run
      outbox topic repartition orders --to 24
      outbox topic repartition orders --to 24 --wait-for-group billing
      outbox topic repartition orders --abort
    """
    until = time.monotonic() + timeout
    if abort:
        if partitions is not None or groups or dry_run:
            raise click.UsageError("--abort takes no --to, --wait-for-group or --dry-run")
        _abort(dsn, name, as_json=as_json)
        return
    if partitions is None:
        raise click.UsageError(
            "give --to PARTITIONS, the new count; or --abort, to put a topic back that is held"
        )
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        old = registry.get(conn, name)
        found = KafkaTopics(bootstrap_servers, kafka).get(name)
        operation.require_possible(old, found, partitions)
        held_move.require_request(old, partitions, groups)
        hold = HeldMove(
            conn, KafkaOffsets(bootstrap_servers, kafka), partitions, groups, until, is_quiet=as_json
        )
        if dry_run:
            next_one = registry_changes.generation(conn) + (old.partitions != partitions)
            relays = registry_changes.relays(conn, next_one, name)
            positions = hold.positions(old).read() if groups else []
            _show_plan(old, found, partitions, relays, positions, as_json=as_json)
            return
        if old.repartition_to is not None or (groups and old.partitions != partitions):
            is_changed = hold.move(old)
        else:
            is_changed = operation.switch(conn, old, partitions) != old
        if is_changed:
            missing.wake(conn, name)
        if not as_json:
            click.echo(_switched(old, partitions), err=True)
        again = printable(held_move.command(name, partitions, groups))
        left = max(0.0, until - time.monotonic())
        relays = following.follow(conn, name, left, "gone over", again, is_quiet=as_json)
    if as_json:
        output.emit_json(_facts(old, found, partitions, relays, groups=groups))
        return
    if not relays:
        click.echo(f"topic {name} has {partitions} partitions; no relay runs, the next one begins with them")
        return
    click.echo(f"topic {name} is published to {partitions} partitions by {_all(len(relays))}")


def _abort(dsn: str, name: str, *, as_json: bool) -> None:
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        old = held_move.abort(conn, name)
    if as_json:
        output.emit_json({"topic": name, "partitions": old.partitions, "aborted": old.repartition_to})
        return
    click.echo(
        f"topic {name} goes on with {old.partitions} partitions; it does not go over to {old.repartition_to}"
    )


def _switched(old: Registered, partitions: int) -> str:
    if old.partitions == partitions:
        return f"the registry has {partitions} partitions for {old.name} already"
    return f"the registry has {partitions} partitions for {old.name} now, {old.partitions} before"


def _all(count: int) -> str:
    return "the relay that runs" if count == 1 else f"all {count} relays"


def _show_plan(
    old: Registered,
    found: KafkaTopic,
    partitions: int,
    relays: Sequence[RelayProgress],
    groups: Sequence[GroupProgress],
    *,
    as_json: bool,
) -> None:
    if as_json:
        facts = _facts(old, found, partitions, relays, dry_run=True)
        output.emit_json({**facts, "groups": [asdict(one) for one in groups]})
        return
    output.pairs(
        [
            ("topic", old.name),
            ("pinned partitions", old.partitions),
            ("to", partitions),
            ("Kafka partitions", found.partitions),
            ("selector", old.selector or "murmur2 (default)"),
            ("relays to go over", [relay.owner for relay in relays] or "none runs"),
            *(("waits for", one.text()) for one in groups),
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
    groups: Sequence[str] = (),
    dry_run: bool = False,
) -> dict[str, Any]:
    return {
        "topic": old.name,
        "before": old.partitions,
        "partitions": partitions,
        "kafka_partitions": found.partitions,
        "changed": not dry_run and old.partitions != partitions,
        "dry_run": dry_run,
        "groups": sorted(set(groups)),
        "relays": [asdict(relay) for relay in relays],
    }
