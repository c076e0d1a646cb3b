"""Reading Kafka by its own offsets: which there are, and the message that each record carries.

Spark's own Kafka source is another jar with jars of its own; confluent-kafka reads as fast and checks every CRC. The
functions that run on executors are shipped with the task, so an executor needs confluent-kafka and pyarrow, nothing of
this package.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import SettingsError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "topic string, partition int, offset bigint, message_id string, digest string"
ROWS = 20_000
"""Records that go from a reader to Spark at a time."""
SPLIT = 1_000_000
"""Offsets that one task reads at most."""
PATIENCE_S = 60.0
"""Seconds without a record or an end of partition after which a read has failed."""
FIXED = {
    "group.id": "outbox-etl-reconcile",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Retention may pass our offset while we read: go on with what is left, the low watermark is read afterwards.
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "check.crcs": True,
    "log_level": 0,
}


class KafkaReadError(Exception):
    """A partition could not be read to its end; raised on an executor."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `start` (inclusive) to `end` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int


class Broker:
    """The topics of a cluster, with their offsets and records."""

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        """Take the brokers to ask first and further settings of librdkafka, security above all.

        Raises:
            SettingsError: no brokers are given, confluent-kafka is not installed, or it refuses a setting.
        """
        if not bootstrap_servers:
            raise SettingsError(
                "no Kafka broker given: use --bootstrap-servers or set OUTBOX_BOOTSTRAP_SERVERS"
            )
        self.config: dict[str, Any] = {**(config or {}), **FIXED, "bootstrap.servers": bootstrap_servers}
        try:
            from confluent_kafka import Consumer  # noqa: PLC0415  (only reconcile needs it)
        except ImportError as error:
            raise SettingsError(
                "confluent-kafka is not installed, and reconcile reads Kafka with it: pip install confluent-kafka"
            ) from error
        try:
            self._consumer = Consumer(self.config)
        except Exception as error:
            raise SettingsError(
                f"librdkafka refuses the Kafka settings: {error}. Correct --kafka-config"
            ) from error

    def watermarks(self, topics: Iterable[str]) -> dict[tuple[str, int], tuple[int, int]]:
        """The lowest offset that is kept, and the one after the last that can be read, of every partition.

        A `read_committed` consumer reads up to the first transaction that is still open. A topic that does not exist
        has none.

        Raises:
            SourceError: no broker responds.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            known = self._consumer.list_topics(timeout=PATIENCE_S).topics
            return {
                (topic, number): _watermarks(self._consumer, topic, number)
                for topic in sorted(set(topics) & set(known))
                for number in sorted(known[topic].partitions)
            }
        except KafkaException as error:
            raise SourceError(
                f"Kafka does not respond: {error.args[0]}. Check --bootstrap-servers, then run again"
            ) from error

    def refuse_hidden(
        self, places: Mapping[tuple[str, int], int], marks: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        """Make sure that no open transaction hides any of these places: they would be taken for lost.

        Args:
            places: the highest offset of each partition that has to be read.
            marks: what `watermarks` answered.

        Raises:
            SourceError: naming the partition and the offset from which on nothing can be read.
        """
        beyond = [place for place, offset in places.items() if place in marks and offset >= marks[place][1]]
        if not beyond:
            return
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415

        consumer = Consumer({**self.config, "isolation.level": "read_uncommitted"})
        try:
            for topic, number in beyond:
                end, real = marks[topic, number][1], _watermarks(consumer, topic, number)[1]
                if end < real:
                    raise SourceError(
                        f"{topic}[{number}] cannot be read from offset {end} on: another producer has a transaction "
                        "open there. Verify again after its end (Kafka aborts it after its transaction.timeout.ms)"
                    )
        except KafkaException as error:
            raise SourceError(
                f"Kafka does not respond: {error.args[0]}. Check --bootstrap-servers, then run again"
            ) from error
        finally:
            consumer.close()

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """The topics whose older records may be taken away by compaction."""
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import AdminClient, ConfigResource  # noqa: PLC0415

        names = sorted(topics)
        if not names:
            return set()
        own = {name: value for name, value in self.config.items() if name not in FIXED}
        admin = AdminClient({**own, "log_level": 0})
        described = admin.describe_configs([ConfigResource("topic", name) for name in names])
        try:
            answers = {resource.name: answer.result(PATIENCE_S) for resource, answer in described.items()}
        except KafkaException as error:
            raise SourceError(
                f"Kafka does not return the settings of its topics: {error.args[0]}. "
                "This user needs DescribeConfigs on them"
            ) from error
        return {
            name for name, answer in answers.items() if "compact" in (answer["cleanup.policy"].value or "")
        }

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def read(self, spark: SparkSession, ranges: Iterable[Range]) -> DataFrame:
        """The records of these offsets that a `read_committed` consumer sees.

        `message_id` is the header outbox-id, null in a foreign record; `digest` see `digest`.
        """
        _ship()
        rows = [astuple(each) for each in _split(ranges)]
        # One range, one task.
        spread = spark.sparkContext.parallelize(rows, max(1, len(rows)))
        frame = spark.createDataFrame(spread, "topic string, partition int, start bigint, end bigint")
        config = dict(self.config)

        def records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _records(batches, config)

        return frame.mapInArrow(records, SCHEMA)

    def save(self, spark: SparkSession, ranges: Iterable[Range], folder: str) -> list[tuple[str, int]]:
        """Have the tasks write the records into Parquet files of this machine; answer their paths and rows."""
        _ship()
        rows = [astuple(each) for each in _split(ranges)] or [("", 0, 0, 0)]  # (a file without rows)
        work = functools.partial(_save, dict(self.config), folder)
        return list(spark.sparkContext.parallelize(rows, len(rows)).map(work).collect())


def digest(key: bytes | None, body: bytes | None) -> str:
    """128 bits that stand for a key and a body; `DIGEST` is the same in Spark's SQL."""
    made = hashlib.sha256(b"~" if key is None else b"%d:%b" % (len(key), key))
    made.update(b"~" if body is None else b"=%b" % body)
    return made.hexdigest()[:32]


DIGEST = """substring(sha2(concat(
    CASE WHEN key IS NULL THEN cast('~' AS binary)
         ELSE concat(cast(concat(cast(length(key) AS string), ':') AS binary), key) END,
    CASE WHEN body IS NULL THEN cast('~' AS binary) ELSE concat(cast('=' AS binary), body) END), 256), 1, 32)"""


def _watermarks(consumer: Any, topic: str, number: int) -> tuple[int, int]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)
    return low, high


def _split(ranges: Iterable[Range]) -> Iterator[Range]:
    for each in ranges:
        for start in range(each.start, each.end, SPLIT):
            yield Range(each.topic, each.partition, start, min(start + SPLIT, each.end))


def _records(batches: Iterable[pa.RecordBatch], config: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Run on an executor: read the ranges that a task was given."""
    for batch in batches:
        for row in batch.to_pylist():
            yield from _read(Range(**row), config)


def _ship() -> None:
    """Have this module's functions sent with the tasks that call them."""
    from pyspark import cloudpickle  # noqa: PLC0415

    by_value: Callable[[Any], None] = cloudpickle.register_pickle_by_value
    by_value(sys.modules[__name__])


def _save(config: Mapping[str, Any], folder: str, range_: tuple[str, int, int, int]) -> tuple[str, int]:
    """Run in a task under `local[…]`: write a range into a file that no other attempt writes."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    path, rows = f"{folder}/{uuid.uuid4().hex}.parquet", 0
    with pq.ParquetWriter(path, _schema()) as file:
        for batch in _read(Range(*range_), config):
            file.write_batch(batch)
            rows += batch.num_rows
    return path, rows


def _read(range_: Range, config: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    from confluent_kafka import Consumer  # noqa: PLC0415

    if range_.start == range_.end:
        return
    consumer = Consumer(dict(config))
    try:
        found: list[tuple[Any, ...]] = []
        for record in records_of(consumer, range_):
            found.append(record)
            if len(found) == ROWS:
                yield _batch(found)
                found = []
        if found:
            yield _batch(found)
    finally:
        consumer.close()


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    types = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string())
    return pa.schema(zip(("topic", "partition", "offset", "message_id", "digest"), types, strict=True))


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    schema = _schema()
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def records_of(consumer: Any, range_: Range) -> Iterator[tuple[Any, ...]]:
    """Yield the records of a range: topic, partition, offset, message id and digest of each.

    Offsets need not follow each other: markers of transactions have one too, and records that compaction or an aborted
    transaction has taken away leave theirs.

    Raises:
        KafkaReadError: the broker does not answer, or no longer has the range's end.
    """
    from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415

    consumer.assign([TopicPartition(range_.topic, range_.partition, range_.start)])
    where = f"{range_.topic}[{range_.partition}]"
    last: Any = None
    while True:
        message = consumer.poll(PATIENCE_S)
        if message is None:
            raise KafkaReadError(
                f"Kafka delivered nothing of {where} for {PATIENCE_S:.0f} s ({last or 'no error'}). Verify again"
            )
        if message.error() is not None:
            last = message.error()
            if last.code() == KafkaError._PARTITION_EOF:
                if message.offset() < range_.end:
                    raise KafkaReadError(
                        f"{where} ends at offset {message.offset()} and had {range_.end} a moment ago: "
                        "Kafka lost its end, or the topic was recreated. Verify again"
                    )
                return
            if last.retriable() or last.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                continue  # the client reconnects; the poll that finds nothing for long ends it
            raise KafkaReadError(f"Kafka cannot read {where}: {last.str()}")
        offset = message.offset()
        if offset >= range_.end:
            return
        message_id = next((value for name, value in message.headers() or () if name == "outbox-id"), None)
        text = None if message_id is None else bytes(message_id).decode("utf-8", "replace")
        yield range_.topic, range_.partition, offset, text, digest(message.key(), message.value())
