"""The hashes of other clients against the originals: RocketMQ's selector class, and librdkafka's own partitioner."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from outbox.partitioning import partition_of
from outbox.partitioning.java_hash import java_hash
from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.download import download
from outbox_relay.downloads.jar_list import listed
from outbox_relay.downloads.java import find_java
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic

SOURCE = Path(__file__).parent / "data" / "SelectByHash.java"
JARS = Path(__file__).parents[3] / "bench" / "rocketmq" / "jars.txt"
NEEDED = ("rocketmq-client", "rocketmq-common")
KEYS = 3000
ALPHABETS = ("abcdefghijklmnopqrstuvwxyz-0123456789", "äöüßçøπжשع", "订单创建支付发货", "😀🚀𝄞a")


def texts(seed: int) -> list[str]:
    """Texts in several scripts, also beyond the Basic Multilingual Plane, and two that hash to extremes."""
    chance = random.Random(seed)
    made = [
        "".join(chance.choices(chance.choice(ALPHABETS), k=int(chance.expovariate(1 / 12))))
        for _ in range(KEYS)
    ]
    return ["", "polygenelubricants", "polygenelubricantr", *made]


def rocketmq() -> str:
    """The class path of RocketMQ's selectors, fetched once."""
    jars = [jar for jar in listed(JARS.read_text()) if jar.artifact in NEEDED]
    assert len(jars) == len(NEEDED)
    name = "rocketmq-selectors-" + jars[0].version
    directory = cached(name, lambda target: download(jars, target, lambda done, of: None))
    return os.pathsep.join(str(directory / jar.file_name) for jar in jars)


@pytest.mark.feature("S-82")
@pytest.mark.parametrize("queues", [1, 4, 7, 12])
def test_java_hash_selects_the_queue_that_rocketmqs_selector_selects(queues: int) -> None:
    java = find_java()
    # A run of a source file takes the compiler along, which a runtime alone does not have.
    if java.path is None or not (java.path.resolve().parent / "javac").exists():
        pytest.skip("needs a JDK: RocketMQ's own selector is called from source")
    seed = int.from_bytes(os.urandom(4), "big")
    keys = texts(seed)
    done = subprocess.run(
        [java.path, "-cp", rocketmq(), str(SOURCE), str(queues)],
        input="".join(key.encode().hex() + "\n" for key in keys),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [tuple(map(int, line.split(" "))) for line in done.stdout.splitlines()]
    found = [(java_hash(key), partition_of("java_hash", key.encode(), queues)) for key in keys]
    assert found == expected, f"seed {seed}"
    assert any(hash_code == -(2**31) for hash_code, _ in expected)


@pytest.mark.feature("S-82")
def test_crc32_selects_the_partition_that_librdkafka_selects(
    bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=7)
    seed = int.from_bytes(os.urandom(4), "big")
    chance = random.Random(seed)
    keys = {b"", *(chance.randbytes(int(chance.expovariate(1 / 20))) for _ in range(KEYS))}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "consistent"})
    for key in keys:
        producer.produce(topic, key=key, value=b"")
        producer.poll(0)
    assert producer.flush(30) == 0
    arrived = {record.key or b"": record.partition for record in read_topic(bootstrap_servers, topic)}
    assert arrived == {key: partition_of("crc32", key, 7) for key in keys}, f"seed {seed}"


@pytest.mark.feature("S-82", "S-101")
def test_relay_places_rows_by_the_hashes_of_other_clients(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=7)
    numbers = range(40)
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        for number in numbers:
            insert(conn, topic, f"o-{number}", f"java-{number}", selector="java_hash")
            insert(conn, topic, f"o-{number}", f"crc-{number}", selector="crc32")
        wait_published(conn)
    where = {record.value: record.partition for record in read_topic(bootstrap_servers, topic)}
    expected = {
        f"{short}-{number}".encode(): partition_of(name, f"o-{number}".encode(), 7)
        for short, name in (("java", "java_hash"), ("crc", "crc32"))
        for number in numbers
    }
    assert where == expected
