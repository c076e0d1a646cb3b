"""From the source's rows to the warehouse's: headers as a map, bodies as JSON where they are, batches one by one."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from outbox_etl.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS

BODY_JSON = """CASE WHEN is_valid_utf8(cast(body AS string))
        AND try_parse_json(concat('[', cast(body AS string), ']')) IS NOT NULL
        AND try_parse_json(concat('{"":', cast(body AS string), '}')) IS NOT NULL
    THEN cast(body AS string) END"""
"""The body where it is one JSON value. Spark's parser stops after the first value and would take "5 apples" for JSON.
What follows a first value in the body would have to begin with "]" or "," to pass as an array, with "}" or "," to pass
as an object, and after a comma an object wants a name and a colon, which an array forbids: so nothing follows."""


def messages(read: DataFrame, hi: int) -> DataFrame:
    """Messages as message_history has them; not published, never asked about: that is joined later."""
    made = read.withColumns(
        {
            "message_id": f.col("message_id").cast("string"),
            "headers": f.from_json("headers", "map<string,string>"),
            "body_json": f.expr(BODY_JSON),
            "status": f.col("state"),
            "published_at": f.lit(None).cast("timestamp"),
            "partition": f.lit(None).cast("int"),
            "offset": f.lit(None).cast("bigint"),
            "checks": f.lit(0),
            "lane": f.col("lane").cast("int"),
            "window_hi": f.lit(hi).cast("bigint"),
        }
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
