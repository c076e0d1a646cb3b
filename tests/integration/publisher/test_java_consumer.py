"""A client that shares no code with the relay's reads what the relay wrote: Kafka's own consumer, in Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from outbox_relay.downloads.jars import kafka_jars
from outbox_relay.downloads.java import find_java
from outbox_relay.downloads.wheels import java_from_wheel
from tests.support.kafka_records import Record, read_topic
from tests.support.plain_inserts import connect, insert, insert_numbered
from tests.support.relay_in_process import publish

DATA = Path(__file__).parent / "data"
LIMIT_S = 60.0


def read_with_java(bootstrap_servers: str, topic: str, partitions: int, count: int) -> list[Record]:
    """Read so many records of a topic with Kafka's Java client."""
    java = find_java().path or java_from_wheel()
    jars = kafka_jars(lambda done, of: None)
    arguments = [bootstrap_servers, topic, str(partitions), str(count)]
    done = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", f"{DATA}:{jars}/*", "StockConsumer", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return [_record(topic, line) for line in done.stdout.splitlines()]


def _record(topic: str, line: str) -> Record:
    partition, offset, key, value, *headers = line.split(" ")
    pairs = (header.split("=") for header in headers)
    named = tuple((bytes.fromhex(name).decode(), _bytes(text)) for name, text in pairs)
    return Record(topic, int(partition), int(offset), _bytes(key), _bytes(value), named)


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


@pytest.mark.feature("S-79")
def test_kafkas_java_consumer_reads_the_records_as_plain_ones(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        insert_numbered(conn, topic, 200)
        insert(
            conn,
            topic,
            "订单-1",
            "你好",
            tags=["创建订单", "支付"],
            headers='{"名字": "值", "nothing": null}',
        )
        insert(conn, topic, None, None)
        insert(conn, topic, b"\x00\xff", b"")
    publish(database, bootstrap_servers, 203)
    by_java = read_with_java(bootstrap_servers, topic, 4, 203)
    # What the Java program prints has no timestamps.
    expected = [record._replace(timestamp=-1) for record in read_topic(bootstrap_servers, topic)]
    assert sorted(by_java) == sorted(expected)
    (chinese,) = [record for record in by_java if record.key == "订单-1".encode()]
    assert chinese.header("outbox-tags") == "创建订单||支付"
