"""`outbox consumers`: consumer groups, where they are, and how far Kafka is ahead of them."""

from __future__ import annotations

import click

from outbox_relay.cli import output
from outbox_relay.cli.consumers import render
from outbox_relay.cli.consumers.replay import replay
from outbox_relay.cli.options import (
    CommandGroup,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.cli.tx.options import reason_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumer_delete, consumer_reset, dlq
from outbox_relay.operations import consumers as registry
from outbox_relay.operations.consumer_lag import KafkaOffsets, lag_of, lags
from outbox_relay.operations.decide import checked_reason
from outbox_relay.operations.dlq import DeadLetterFilter
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting

MOST_RETRIES = 10
"""Messages that `outbox consumers show` lists of those that are tried again."""


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
    idle     those of them that have read no partition for a minute
    due      retries that are due now; later: those that wait for their delay
    waiting  messages behind one of their key that failed
    held     order keys with such a message
    full     keys of the group with so many that later ones wait in Kafka
    oldest   how long ago the oldest message that is not consumed was published
    lag      how many offsets Kafka is ahead: its last stable offset minus the position
    role     whose members alone see the group; shown if a group has one

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
    """Show one consumer group: members, pauses, the position in each partition, and the next ten retries."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = registry.find(conn, group)
        members, pauses = registry.members(conn, group), registry.pauses(conn, group)
        parked = [row for row in registry.groups(conn) if row["consumer_group"] == group]
        positions = registry.positions(conn, group)
        registry.apply_policies(conn)
        retrying = dlq.retrying(conn, DeadLetterFilter(group=group), MOST_RETRIES)
    if bootstrap_servers:
        positions = _with_ends(KafkaOffsets(bootstrap_servers, kafka), positions)
    if as_json:
        lists = {"members": members, "pauses": pauses, "topics": parked, "partitions": positions}
        output.emit_json({**found, **lists, "retrying": retrying})
    else:
        render.group(found, members, pauses, positions, retrying, has_lag=bool(bootstrap_servers))


@consumers.command()
@click.argument("group")
@click.argument("role")
@dsn_option
@json_option
def bind(*, group: str, role: str, dsn: str, as_json: bool) -> None:
    """Bind a group to a database role: only its members, and operators, see and change what the group has.

    Other users with the role outbox_consumer find no inbox, position, parked message, dead letter or subscription of
    it, and can write none. A member that runs as such a user ends within about ten seconds and loses nothing. A group
    can be bound before its first member runs. Needs the role outbox_operator.

    \b
    Examples:
      outbox consumers bind billing billing_app
      outbox consumers unbind billing
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        is_new = registry.bind(conn, group, role)
    if as_json:
        output.emit_json({"consumer_group": group, "role": role, "is_new": is_new})
    else:
        click.echo(
            f"bound group {group} to the role {role}" + ("; no member of it has run yet" if is_new else "")
        )


@consumers.command()
@click.argument("group")
@dsn_option
@json_option
def unbind(*, group: str, dsn: str, as_json: bool) -> None:
    """Leave a group to every user with the role outbox_consumer again. Needs the role outbox_operator."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        registry.unbind(conn, group)
    if as_json:
        output.emit_json({"consumer_group": group, "role": None})
    else:
        click.echo(f"group {group} is bound to no role")


_topic_option = click.option(
    "--topic", metavar="TOPIC", help="This topic in the group only. [default: all, as one pause]"
)


@consumers.command()
@click.argument("group")
@_topic_option
@reason_option
@dsn_option
@json_option
def pause(*, group: str, topic: str | None, reason: str, dsn: str, as_json: bool) -> None:
    """Let a group apply nothing more for now, or nothing of a topic; its members run on and keep their partitions.

    Members obey within ten seconds, and those that start obey at once; messages that listeners have by then are
    finished. Retries wait as well. The rest stays in Kafka, whose retention goes on, until: outbox consumers resume.

    \b
    Examples:
      outbox consumers pause billing --reason "the bank is away"
      outbox consumers pause billing --topic refunds --reason "duplicates, see INC-7"
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        changed = registry.pause(conn, group, topic, checked_reason(reason))
    if as_json:
        output.emit_json({"consumer_group": group, "topic": topic, "changed": changed})
        return
    name = f"group {group}" if topic is None else f"topic {topic} in group {group}"
    again = f"outbox consumers resume {group}" + ("" if topic is None else f" --topic {topic}")
    click.echo(f"{name} is paused{'' if changed else ' already'}; go on with: {again}")


@consumers.command()
@click.argument("group")
@_topic_option
@dsn_option
@json_option
def resume(*, group: str, topic: str | None, dsn: str, as_json: bool) -> None:
    """End a pause of a group, or of one topic in it; members go on within ten seconds, where they were.

    \b
    Example:
      outbox consumers resume billing
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        changed = registry.resume(conn, group, topic)
        left = registry.pauses(conn, group)
    if as_json:
        output.emit_json({"consumer_group": group, "topic": topic, "changed": changed, "pauses": left})
        return
    name = f"group {group}" if topic is None else f"topic {topic} in group {group}"
    click.echo(f"{name} goes on" if changed else f"{name} was not paused")
    if left:
        names = ", ".join("all topics" if each["topic"] is None else each["topic"] for each in left)
        click.echo(f"still paused: {names}")


@consumers.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    required=True,
    metavar="first|last|TIME|OFFSET",
    help="The oldest message that Kafka has, the end, the first message published at or after a time (2h ago, or an "
    "ISO time), or an offset of one partition.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    multiple=True,
    help="This partition only; repeatable. [default: all of the topic]",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def reset(
    *,
    group: str,
    topic: str,
    to: str,
    partitions: tuple[int, ...],
    yes: bool,
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Set where a group that does not run goes on, in PostgreSQL and in Kafka; shows what changes, and asks.

    Back: messages that the group has handled are not applied again, because its inbox refuses them; others are.
    Forward: what is skipped has no effect. Parked messages stay parked. Members that run are refused: stop them first.
    If the command ends between PostgreSQL and Kafka, a reset back holds, and a reset forward has to be repeated.

    \b
    Examples:
      outbox consumers reset points orders --to 2026-11-20T08:00Z
      outbox consumers reset points orders --to last --yes
      outbox consumers reset points orders --to 1700 --partition 3
    """
    client = KafkaOffsets(bootstrap_servers, kafka)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        registry.apply_policies(conn)
        planned = consumer_reset.plan(conn, client, group, topic, to=to, partitions=partitions)
        if not as_json:
            render.reset(planned)
        if not yes:
            click.confirm(f"The positions of group {group} will be set. Go on?", abort=True, err=True)
        consumer_reset.apply(conn, client, planned)
    if as_json:
        output.emit_json(
            {
                "consumer_group": group,
                "topic": topic,
                "partitions": [
                    {"partition": move.partition, "from": move.begin, "to": move.to} for move in planned.moves
                ],
            }
        )
    else:
        click.echo("set; the group goes on there when it runs")


@consumers.command()
@click.argument("group")
@reason_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@json_option
def delete(
    *,
    group: str,
    reason: str,
    yes: bool,
    dsn: str,
    bootstrap_servers: str | None,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """Delete a group that does not run: inbox, positions, parked messages and dead letters, and Kafka's offsets.

    A group of this name that runs later is a new one. Members that run are refused: stop them first. One that stood
    still and goes on later ends with an error, and applies nothing. It may be killed at any time, and run again.

    \b
    Examples:
      outbox consumers delete points --reason "replaced by points-2" --bootstrap-servers broker:9092
    """
    reason = checked_reason(reason)
    client = KafkaOffsets(bootstrap_servers, kafka) if bootstrap_servers else None
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        registry.apply_policies(conn)
        found = consumer_delete.find_deletable(conn, group)
        if not yes:
            has = "its inbox" if found is None else render.deleted(found)
            click.confirm(f"Group {group} will be deleted, with {has}. Go on?", abort=True, err=True)
        rows = consumer_delete.delete(conn, client, group, reason)
    if as_json:
        facts = {"consumer_group": group, "was_known": found is not None, "inbox_rows": rows}
        output.emit_json({**facts, "kafka_offsets": "kept" if client is None else "deleted"})
        return
    click.echo(f"deleted group {group}, with {formatting.many(rows, 'row')} of the inbox")
    if client is None:
        click.echo(
            "Kafka still has its offsets, and a new group of this name begins there. To delete them give the command "
            "again with --bootstrap-servers, or: "
            f"kafka-consumer-groups.sh --bootstrap-server BROKER --delete --group {group}"
        )


consumers.add_command(replay)


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
