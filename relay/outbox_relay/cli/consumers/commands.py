"""`outbox consumers`: consumer groups, where they are, and how far Kafka is ahead of them."""

from __future__ import annotations

import click

from outbox_relay.cli import output
from outbox_relay.cli.consumers import render
from outbox_relay.cli.options import (
    CommandGroup,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers as registry
from outbox_relay.operations.consumer_lag import KafkaOffsets, lag_of, lags
from outbox_relay.operations.messages import Row


@click.group(cls=CommandGroup)
def consumers() -> None:
    """Consumer groups of this database: members, positions, lag, and what of them is parked.

    Groups that do not run are listed, too. Dead letters one by one: outbox dlq ls.
    """


@consumers.command("ls")
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@json_option
def ls(*, dsn: str, bootstrap_servers: str | None, kafka: dict[str, str], as_json: bool) -> None:
    """List consumer groups, a line for each topic.

    \b
    members  those that were seen within a minute
    due      retries that are due now; later: those that wait for their delay
    waiting  messages behind one of their key that failed
    held     order keys with such a message
    oldest   how long ago the oldest message that is not consumed was published
    lag      how many offsets Kafka is ahead: its last stable offset minus the position

    \b
    Examples:
      outbox consumers ls
      outbox consumers ls --bootstrap-servers broker:9092
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = registry.groups(conn)
        positions = registry.positions(conn)
    if bootstrap_servers:
        known = lags(KafkaOffsets(bootstrap_servers, kafka), positions)
        for row in found:
            lag = known.get((row["consumer_group"], row["kafka_id"]))
            row["lag"] = None if lag is None else lag.messages
            row["oldest_age_seconds"] = None if lag is None else lag.oldest
    if as_json:
        output.emit_json(found)
    else:
        render.groups(found, has_lag=bool(bootstrap_servers))


@consumers.command()
@click.argument("group")
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@json_option
def show(
    *, group: str, dsn: str, bootstrap_servers: str | None, kafka: dict[str, str], as_json: bool
) -> None:
    """Show one consumer group: its members, and its position in each partition."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = registry.find(conn, group)
        members = registry.members(conn, group)
        parked = [row for row in registry.groups(conn) if row["consumer_group"] == group]
        positions = registry.positions(conn, group)
    if bootstrap_servers:
        positions = _with_ends(KafkaOffsets(bootstrap_servers, kafka), positions)
    if as_json:
        output.emit_json({**found, "members": members, "topics": parked, "partitions": positions})
    else:
        render.group(found, members, positions, has_lag=bool(bootstrap_servers))


def _with_ends(kafka: KafkaOffsets, positions: list[Row]) -> list[Row]:
    """Add ends and lag, and the partitions of Kafka in which the group has no position yet."""
    known = kafka.read({row["topic"] for row in positions})
    own = {row["kafka_id"]: row for row in positions}
    rows = [{**row, "end": None, "lag": None} for row in positions]
    for name, offsets in known.items():
        if (topic := own.get(offsets.kafka_id)) is None:
            continue  # another topic had this name when the group read it
        mine = {row["partition"]: row for row in rows if row["kafka_id"] == offsets.kafka_id}
        for part, end in offsets.ends.items():
            if part not in mine:
                nothing = dict.fromkeys(("position", "generation", "moved_at"))
                rows.append({**topic, "topic": name, "partition": part, **nothing})
            row = mine.get(part, rows[-1])
            row["end"], row["lag"] = end, lag_of(offsets, part, row["position"])
    return sorted(rows, key=lambda row: (row["topic"], row["kafka_id"], row["partition"]))
