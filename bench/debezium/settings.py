"""The settings of Kafka Connect and of Debezium's connector: as they come, and tuned for many events or for few."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

VERSION = "3.7.0.Final"
TUNED = {
    "max.batch.size": "16384",
    "max.queue.size": "131072",
    "poll.interval.ms": "1",
    "producer.override.batch.size": "262144",
    "producer.override.compression.type": "lz4",
}
DRAINING = {**TUNED, "producer.override.linger.ms": "1"}
AT_ONCE = {**TUNED, "producer.override.linger.ms": "0"}
DEFAULT: dict[str, str] = {}
JSON = "org.apache.kafka.connect.json.JsonConverter"


def worker(bootstrap_servers: str, port: int, directory: Path) -> dict[str, str]:
    """Return the settings of the process."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "only_scan",
        "connector.client.config.override.policy": "All",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        "value.converter.delegate.converter.type": JSON,
    }


def connector(dsn: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the connector, without tombstones, heartbeats and its own headers."""
    place = conninfo_to_dict(dsn)
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "route.topic.replacement": "${routedByValue}",
        "table.fields.additional.placement": "source:header:source",
    }
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": str(place["host"]),
        "database.port": str(place["port"]),
        "database.dbname": str(place["dbname"]),
        "database.user": str(place["user"]),
        "database.password": str(place.get("password") or ""),
        "topic.prefix": "bench",
        "slot.name": "bench_debezium",
        "publication.name": "bench_debezium",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.event_outbox",
        "snapshot.mode": "no_data",
        "message.prefix.exclude.list": "outbox",
        "tombstones.on.delete": "false",
        "extended.headers.enabled": "false",
        "transforms": "outbox",
        **{f"transforms.outbox.{name}": value for name, value in router.items()},
        **settings,
    }
