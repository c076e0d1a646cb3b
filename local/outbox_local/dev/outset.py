"""What has to be there before relay and checker run: the schema, and the topics that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_local.stack.prepare import Report
from outbox_migrations import api as migrations
from outbox_relay.database import connections, schema
from outbox_relay.operations import partitions, topics
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.text.errors import OperatorError

DAYS_AHEAD = 7
PARTITIONS = 12
"""As `outbox topic create`."""


class SchemaError(OperatorError):
    """The database cannot have this version's schema."""


def bring_schema(dsn: str, report: Report) -> None:
    """Bring the schema to this version, with partitions for the coming days.

    Raises:
        SchemaError: the server or its schema does not allow it.
    """
    with connections.connect(dsn, application_name="outbox dev") as conn:
        found = schema.revision(conn)
        if found is not None and found > schema.REVISION:
            schema.require_current(conn)  # it raises, and names what to do about a newer schema
    try:
        before = migrations.upgrade(dsn)
    except (
        migrations.UnsupportedServerError,
        migrations.UnknownRevisionError,
        migrations.UpgradeBlockedError,
    ) as error:
        raise SchemaError(str(error)) from None
    with connections.connect(dsn, application_name="outbox dev") as conn:
        partitions.ensure(conn, DAYS_AHEAD)
    report(
        f"schema: {before.head}"
        if before.is_current
        else f"schema: {before.current or 'none'} → {before.head}"
    )


def bring_topics(dsn: str, bootstrap_servers: str, names: Sequence[str], report: Report) -> None:
    """Create and register the topics that are missing; those that are there stay as they are.

    Raises:
        TopicError: Kafka or the registry refuses one.
    """
    if not names:
        return
    kafka = KafkaTopics(bootstrap_servers)
    with connections.connect(dsn, application_name="outbox dev") as conn:
        for name in dict.fromkeys(names):
            known, made = topics.find(conn, name), kafka.find(name)
            count = PARTITIONS if known is None else known.partitions
            if made is None:
                limit = {} if known is None else {"max.message.bytes": str(known.max_message_bytes)}
                made = kafka.create(name, count, -1, limit)
            if known is None:
                topics.add(
                    conn,
                    name,
                    message_type="MIXED",
                    partitions=made.partitions,
                    selector=None,
                    max_message_bytes=made.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES,
                )
            report(f"topic: {name}, {made.partitions} partitions")
