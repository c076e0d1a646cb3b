"""From the source's rows to the warehouse's: headers as a map, bodies as JSON where they are, batches one by one."""

from __future__ import annotations

import uuid

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS

_END = uuid.uuid4().hex
BODY_JSON = f"""CASE WHEN is_valid_utf8(cast(body AS string)) AND try_variant_get(
        try_parse_json(concat('[', cast(body AS string), ',"{_END}"]')), '$[1]', 'string') = '{_END}'
    THEN cast(body AS string) END"""
"""The body where it is one JSON value. Spark's parser stops after the first value and would take "5 apples" for JSON:
in an array with the body, the second value must be one that no body can know. One parse."""


def messages(read: DataFrame, hi: int) -> DataFrame:
    """Messages as message_history has them, not yet published, never asked about, unless they were read with that."""
    unknown = {"published_at": "timestamp", "partition": "int", "offset": "bigint"}
    made = read.withColumns(
        {
            "message_id": f.col("message_id").cast("string"),
            "headers": f.from_json("headers", "map<string,string>"),
            "body_json": f.expr(BODY_JSON),
            "status": f.col("state"),
            "lane": f.col("lane").cast("int"),
            "window_hi": f.lit(hi).cast("bigint"),
        }
        | {name: f.lit(None).cast(kind) for name, kind in unknown.items() if name not in read.columns}
        | ({} if "checks" in read.columns else {"checks": f.lit(0)})
    )
    return made.select(*MESSAGE_HISTORY.names)


def events(read: DataFrame, hi: int) -> DataFrame:
    """Events as transaction_events has them."""
    return read.withColumn("window_hi", f.lit(hi).cast("bigint")).select(*TRANSACTION_EVENTS.names)


def publications(read: DataFrame, hi: int) -> DataFrame:
    """Batches, one row per message of theirs."""
    zipped = f.explode(f.arrays_zip("positions", "partitions", "offsets"))
    each = read.select("xid", "epoch", "batch", "published_at", zipped.alias("of"))
    made = each.select(
        f.col("of.positions").alias("position"),
        f.col("of.partitions").alias("partition"),
        f.col("of.offsets").alias("offset"),
        "published_at",
        "epoch",
        "batch",
        "xid",
        f.lit(hi).cast("bigint").alias("window_hi"),
    )
    return made.select(*PUBLICATIONS.names)


def first_publications(rows: DataFrame) -> DataFrame:
    """The publication that counts of each position: the first, by its time and then by its offset."""
    first = f.min(f.struct("published_at", "offset", "partition")).alias("first")
    return (
        rows.groupBy("position")
        .agg(first)
        .select(
            "position",
            f.col("first.partition").alias("partition"),
            f.col("first.offset").alias("offset"),
            f.col("first.published_at").alias("published_at"),
        )
    )
