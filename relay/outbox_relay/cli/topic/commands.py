"""`outbox topic`: make topics in Kafka and register what may be sent to them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from outbox.partitioning.selectors import BUILT_IN
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_relay.cli import output
from outbox_relay.cli.options import (
    CommandGroup,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.cli.topic import missing, pause, render, repartition
from outbox_relay.cli.topic.options import (
    MOST_BYTES,
    SELECTOR_HELP,
    kafka_settings,
    require_no_order,
    selector_option,
    skip_ahead_option,
    topic_argument,
    type_option,
)
from outbox_relay.database import connections, schema
from outbox_relay.operations import topics as registry
from outbox_relay.operations.kafka_topics import KafkaTopic, KafkaTopics, KafkaUnreachableError
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.text import formatting


@click.group(cls=CommandGroup)
def topic() -> None:
    """Register topics: type, partitions, size limit.

    A topic's partition count is pinned when it is registered: keys are hashed over the pinned count for ever, so
    that partitions added in Kafka later move no key. The relay registers an unregistered topic at its
    first message, as MIXED.
    """


@topic.command()
@topic_argument
@click.option(
    "--partitions", type=click.IntRange(1, 100_000), default=12, show_default=True, help="Partitions; pinned."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32_767),
    help="Copies of each partition. [default: the broker's default.replication.factor]",
)
@click.option(
    "--config",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=kafka_settings,
    help="Kafka topic setting; repeatable.",
)
@type_option("MIXED")
@selector_option(SELECTOR_HELP)
@skip_ahead_option(default=False)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def create(
    *,
    name: str,
    partitions: int,
    replication_factor: int | None,
    config: dict[str, str],
    message_type: str,
    selector: str | None,
    skip_ahead: bool,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Create a topic in Kafka and register it.

    A topic that is registered and missing in Kafka (it was registered by SQL, or deleted there) is created with the
    registered number of partitions. What is held of the topic is tried again within about a second.

    \b
      outbox topic create orders --partitions 12 --type FIFO
      outbox topic create audit --partitions 3 --config retention.ms=604800000 --skip-ahead
    """
    require_no_order(message_type, skip_ahead=skip_ahead)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        topics = KafkaTopics(bootstrap_servers, kafka)
        # Before Kafka is touched: a topic made there and then refused here would be left behind.
        known = registry.find(conn, name)
        if known is not None:
            missing.require(topics, known, partitions, message_type, selector, skip_ahead=skip_ahead)
            partitions = known.partitions
            config = missing.size_limit(known) | config
        made = topics.create(name, partitions, replication_factor or -1, config)
        registered = (
            known
            or registry.add(conn, name, **_as_made(made, message_type, selector, skip_ahead=skip_ahead))[0]
        )
        missing.wake(conn, name)
    render.one(
        registered,
        made,
        as_json,
        f"created topic {name} with {formatting.many(made.partitions, 'partition')}"
        + (" and registered it" if known is None else ", as it is registered"),
    )


@topic.command()
@topic_argument
@type_option("MIXED")
@selector_option(SELECTOR_HELP)
@skip_ahead_option(default=False)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def register(
    *,
    name: str,
    message_type: str,
    selector: str | None,
    skip_ahead: bool,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Register a topic that Kafka has; its present partition count is pinned.

    The size limit is the topic's max.message.bytes. Registering the same again changes nothing and succeeds.
    """
    require_no_order(message_type, skip_ahead=skip_ahead)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = KafkaTopics(bootstrap_servers, kafka).get(name)
        made = _as_made(found, message_type, selector, skip_ahead=skip_ahead)
        registered, new = registry.add(conn, name, **made)
        missing.wake(conn, name)
    render.one(
        registered,
        found,
        as_json,
        f"registered topic {name}" if new else f"topic {name} is registered already",
    )


def _as_made(
    found: KafkaTopic, message_type: str, selector: str | None, *, skip_ahead: bool
) -> dict[str, Any]:
    limit = found.max_message_bytes
    if limit is None:
        limit = DEFAULT_MAX_MESSAGE_BYTES
        click.echo(
            f"warning: the size limit of {found.name} may not be read; {limit} bytes are assumed. Change it with: "
            f"outbox topic alter {found.name} --max-message-bytes N",
            err=True,
        )
    if selector is not None and selector not in BUILT_IN:
        click.echo(
            f"note: {selector!r} is not a built-in selector ({', '.join(BUILT_IN)}); every producer must register it",
            err=True,
        )
    return {
        "message_type": message_type.upper(),
        "partitions": found.partitions,
        "selector": selector,
        "max_message_bytes": limit,
        "skip_ahead": skip_ahead,
    }


@topic.command()
@topic_argument
@type_option(None)
@click.option(
    "--max-message-bytes",
    type=click.IntRange(1, MOST_BYTES),
    help="Largest record that may be sent, in bytes; at most the Kafka topic's max.message.bytes.",
)
@click.option("--partitions", type=click.IntRange(1, 100_000), help="New pinned count; needs --move-keys.")
@selector_option("New default selector; needs --move-keys.")
@click.option(
    "--no-selector",
    is_flag=True,
    help="Take the default selector away: keys are hashed by murmur2 again. Needs --move-keys.",
)
@skip_ahead_option(default=None)
@click.option(
    "--move-keys",
    is_flag=True,
    help="Let keys go to other partitions: their order across the change is not kept.",
)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def alter(
    *,
    name: str,
    message_type: str | None,
    max_message_bytes: int | None,
    partitions: int | None,
    selector: str | None,
    no_selector: bool,
    skip_ahead: bool | None,
    move_keys: bool,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Change a registered topic's type, size limit or --skip-ahead; what moves keys only with --move-keys.

    To go over to more partitions with each key in its order: outbox topic repartition.

    Producers notice within a minute, the relay within half a minute. What is already in the outbox is not
    checked again.
    """
    if selector is not None and no_selector:
        raise click.UsageError("--selector and --no-selector contradict each other: give one of them")
    if (
        all(one is None for one in (message_type, max_message_bytes, partitions, selector, skip_ahead))
        and not no_selector
    ):
        raise click.UsageError(
            "nothing to change: give --type, --max-message-bytes, --partitions, --selector, --no-selector, "
            "--skip-ahead or --no-skip-ahead"
        )
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        old = registry.get(conn, name)
        if not move_keys:
            registry.require_keys_stay(old, partitions, selector, clear_selector=no_selector)
        found = KafkaTopics(bootstrap_servers, kafka).get(name)
        if max_message_bytes is not None and max_message_bytes > (found.max_message_bytes or MOST_BYTES):
            raise TopicError(
                f"--max-message-bytes {max_message_bytes}: Kafka's topic {name!r} takes {found.max_message_bytes} at "
                "most (max.message.bytes); raise it there first"
            )
        if partitions is not None and partitions > found.partitions:
            raise TopicError(
                f"--partitions {partitions}: Kafka's topic {name!r} has {found.partitions}; add partitions there first"
            )
        changed = registry.change(
            conn,
            old,
            message_type=(message_type or old.message_type).upper(),
            partitions=partitions or old.partitions,
            selector=None if no_selector else selector or old.selector,
            max_message_bytes=max_message_bytes or old.max_message_bytes,
            skip_ahead=skip_ahead,
        )
        missing.wake(conn, name)
    render.one(changed, found, as_json, f"changed topic {name}")


topic.add_command(repartition.repartition)
topic.add_command(pause.pause)
topic.add_command(pause.resume)
topic.add_command(pause.on_growth)


@topic.command("ls")
@dsn_option
@json_option
def ls(dsn: str, as_json: bool) -> None:
    """List the registered topics."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = registry.everything(conn)
    if as_json:
        output.emit_json([asdict(one) for one in found])
        return
    render.show_list(found)


@topic.command()
@topic_argument
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@json_option
def show(name: str, dsn: str, bootstrap_servers: str | None, kafka: dict[str, str], as_json: bool) -> None:
    """Show one registered topic, next to what Kafka has when a broker is given."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        registered = registry.get(conn, name)
    found = None
    if bootstrap_servers:
        try:
            found = KafkaTopics(bootstrap_servers, kafka).find(name)
            if found is None:
                click.echo(f"warning: Kafka at {bootstrap_servers} has no topic {name!r}", err=True)
        except KafkaUnreachableError as error:
            click.echo(f"warning: {error}", err=True)
    render.one(registered, found, as_json)
