"""Repairs a topic that is registered and missing in Kafka, and lets the relay try what is held of it again."""

from __future__ import annotations

import click
import psycopg
from click.core import ParameterSource

from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_relay.operations import holds
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.operations.topics import Registered
from outbox_relay.text.formatting import many


def require(
    topics: KafkaTopics,
    known: Registered,
    partitions: int,
    message_type: str,
    selector: str | None,
    *,
    skip_ahead: bool,
) -> None:
    """Refuse to create a registered topic that Kafka has, or with other properties than are registered.

    Raises:
        TopicError: Kafka has it, or an option that was given contradicts the registry.
    """
    if topics.find(known.name) is not None:
        raise TopicError(
            f"topic {known.name!r} is registered already, and Kafka has it; see: outbox topic show {known.name}"
        )
    pinned = {
        "partitions": (partitions, known.partitions),
        "message_type": (message_type.upper(), known.message_type),
        "selector": (selector or "murmur2", known.selector or "murmur2"),
        "skip_ahead": (skip_ahead, known.skip_ahead),
    }
    for name, (wanted, is_registered) in pinned.items():
        if _given(name) and wanted != is_registered:
            option = "--type" if name == "message_type" else f"--{name.replace('_', '-')}"
            raise TopicError(
                f"{option} {wanted}: topic {known.name!r} is registered with {is_registered}, and Kafka does not have "
                f"it. Keys are bound to the registered values, so it is created with them: leave {option} out\n"
                f"create it as it is registered: outbox topic create {known.name}; "
                f"change it afterwards: outbox topic alter {known.name} --help"
            )


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def size_limit(known: Registered) -> dict[str, str]:
    """Return the Kafka setting that lets in what the registry lets in; none where that is Kafka's default."""
    if known.max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES:
        return {}
    return {"max.message.bytes": str(known.max_message_bytes)}


def wake(conn: psycopg.Connection[object], name: str) -> None:
    """Ask the relay to try what is held of a topic again.

    What was done to the topic is done: a login that may not release sees a note.
    """
    try:
        asked = holds.release(conn, holds.everything(conn, holds.HoldFilter(topic=name), None))
    except psycopg.errors.InsufficientPrivilege:
        click.echo(
            f"note: keys of this topic that are held wait: outbox holds release --topic {name}", err=True
        )
        return
    if asked:
        click.echo(f"the relay tries {many(len(asked), 'hold')} of {name} again now", err=True)
