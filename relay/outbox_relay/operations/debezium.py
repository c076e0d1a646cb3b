"""A connector of Debezium that publishes the messages of an outbox in the relay's place.

Debezium reads the write-ahead log, where there are tables only, so the event router is given the columns of
`outbox.message`. What it cannot do is left out by the row filter of the publication; see docs/how-to/debezium.md.
"""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

NAME = "outbox_debezium"
"""Of the replication slot and of the publication."""
HEADERS = {
    "message_id": "outbox-id",
    "producer_group": "outbox-producer-group",
    "transaction_id": "outbox-transaction-id",
    "traceparent": "traceparent",
    "headers": "outbox-headers",
}
"""Columns that become headers; null where the column is."""
COLUMNS = ("id", "topic", "key", "body", "queue", *HEADERS)
"""What the connector reads of a message."""


def _converter(of: str) -> dict[str, str]:
    return {
        f"{of}.converter": "io.debezium.converters.BinaryDataConverter",
        f"{of}.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        f"{of}.converter.delegate.converter.type.schemas.enable": "false",
    }


def connector(dsn: str) -> dict[str, object]:
    """Return what Kafka Connect's `POST /connectors` takes, without a password.

    Args:
        dsn: The database; its password is left out.
    """
    place = conninfo_to_dict(dsn)
    placement = [f"{column}:header:{header}" for column, header in HEADERS.items()]
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": "message_id",
        "table.field.event.key": "key",
        "table.field.event.payload": "body",
        "route.by.field": "topic",
        "route.topic.replacement": "${routedByValue}",
        "route.tombstone.on.empty.payload": "true",
        "table.fields.additional.placement": ",".join([*placement, "queue:partition"]),
        "table.op.invalid.behavior": "error",
    }
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": str(place.get("host") or "localhost"),
        "database.port": str(place.get("port") or 5432),
        "database.dbname": str(place.get("dbname") or ""),
        "database.user": str(place.get("user") or ""),
        "database.password": "${env:PGPASSWORD}",
        "topic.prefix": "outbox",
        "slot.name": NAME,
        "publication.name": NAME,
        "publication.autocreate.mode": "disabled",
        "table.include.list": "outbox.message",
        "column.include.list": ",".join(f"outbox.message.{column}" for column in COLUMNS),
        "snapshot.mode": "no_data",
        # The relay writes logical messages of this prefix: its barriers.
        "message.prefix.exclude.list": "outbox",
        "tombstones.on.delete": "false",
        "heartbeat.interval.ms": "10000",
        "extended.headers.enabled": "false",
        # Bytes as they are; Debezium's heartbeats, which are structures, as JSON.
        **_converter("key"),
        **_converter("value"),
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        "transforms": "outbox",
        **{f"transforms.outbox.{name}": value for name, value in router.items()},
    }
    return {"name": NAME, "config": config}
