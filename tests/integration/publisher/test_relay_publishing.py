"""What the relay writes into Kafka: order, partitions, offsets, headers."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.partitioning.murmur2 import murmur2
from tests.support.kafka_records import by_key_and_version, compare, message_ids, read_topic
from tests.support.plain_inserts import connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.feature("S-79", "S-81")
def test_what_is_committed_arrives_in_order_on_the_partition_of_its_key(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        for start in range(0, 3000, 100):
            insert_numbered(conn, topic, 100, start=start)
        wait_published(conn)
        records = read_topic(bootstrap_servers, topic)
        assert not compare(records, numbered(3000)).broken
        assert max(message_ids(records).values()) == 1
        for record in records:
            assert record.key is not None
            assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4
        relay.stop()


def test_message_status_shows_the_partition_and_offset_a_consumer_reads(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        insert_numbered(conn, topic, 200)
        for number in range(20):
            insert(conn, topic, f"k{number}", f"k{number}:{1000 + number}")
        wait_published(conn)
        shown = {
            (str(row[0]), row[1], row[2])
            for row in conn.execute(
                "SELECT message_id, partition, \"offset\" FROM outbox.message_status WHERE status = 'PUBLISHED'"
            )
        }
    read = {(r.message_id, r.partition, r.offset) for r in read_topic(bootstrap_servers, topic)}
    assert len(shown) == 220
    assert shown == read


@pytest.mark.feature("S-28", "S-39", "S-64", "S-67")
def test_a_record_carries_the_outbox_headers_and_then_the_users(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        message_id = insert(
            conn,
            topic,
            "订单-1",
            "你好",
            tags=["创建订单", "支付", "发货"],
            index_keys=["order-1", "customer-7"],
            producer_group="orders",
            transaction_id="tx-42",
            traceparent=TRACEPARENT,
            headers='{"content-type": "text/plain", "empty": "", "nothing": null, "名字": "值"}',
        )
        row = conn.execute("SELECT born_at FROM outbox.message").fetchone()
        wait_published(conn)
    assert row is not None
    (record,) = read_topic(bootstrap_servers, topic)
    born: datetime = row[0]
    assert record.key == "订单-1".encode()
    assert record.value == "你好".encode()
    assert [name for name, _ in record.headers[:7]] == [
        "outbox-id",
        "outbox-born-at",
        "outbox-tags",
        "outbox-keys",
        "outbox-producer-group",
        "outbox-transaction-id",
        "traceparent",
    ]
    assert dict(record.headers) == {
        "outbox-id": message_id.encode(),
        "outbox-born-at": str(round(born.timestamp() * 1000)).encode(),
        "outbox-tags": "创建订单||支付||发货".encode(),
        "outbox-keys": b"order-1 customer-7",
        "outbox-producer-group": b"orders",
        "outbox-transaction-id": b"tx-42",
        "traceparent": TRACEPARENT.encode(),
        "content-type": b"text/plain",
        "empty": b"",
        "nothing": None,
        "名字": "值".encode(),
    }


@pytest.mark.feature("H-09")
def test_a_half_message_carries_its_check_headers_once_it_is_committed(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    outbox = Outbox(producer_group="payments")
    message = Message(topic, key="p-7", checker="payment", biz_type="payment", biz_id="p-7")
    with psycopg.connect(database) as conn, RelayProcess(database, bootstrap_servers):
        half = outbox.prepare(conn, message.with_check_headers())
        plain = outbox.prepare(conn, message)
        for one in (half, plain):
            outbox.commit(conn, one)
        conn.commit()
        wait_published(conn)
    records = {record.message_id: dict(record.headers) for record in read_topic(bootstrap_servers, topic)}
    expected = {"checker": b"payment", "biz-type": b"payment", "biz-id": b"p-7"}
    carried, bare = records[str(half.message_id)], records[str(plain.message_id)]
    assert {name: carried[name] for name in expected} == expected
    assert not expected.keys() & bare.keys()


def test_a_delayed_message_carries_the_time_at_which_it_was_due(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        row = conn.execute(
            "INSERT INTO outbox.message (topic, body, deliver_at) VALUES (%s, '', clock_timestamp() + interval '1 s') "
            "RETURNING (date_part('epoch', deliver_at) * 1000)::bigint, (date_part('epoch', born_at) * 1000)::bigint",
            [topic],
        ).fetchone()
        published = "SELECT 1 FROM outbox.publication"
        wait_until(lambda: conn.execute(published).fetchone() is not None, "it is published")
    assert row is not None
    (record,) = read_topic(bootstrap_servers, topic)
    assert record.headers[1:] == (
        ("outbox-born-at", str(row[1]).encode()),
        ("outbox-deliver-at", str(row[0]).encode()),
    )


def test_a_message_with_nothing_but_a_topic_carries_id_and_birth_only(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        insert(conn, topic, None, "x")
        wait_published(conn)
    (record,) = read_topic(bootstrap_servers, topic)
    assert [name for name, _ in record.headers] == ["outbox-id", "outbox-born-at"]
    assert record.key is None


def test_a_null_body_is_a_tombstone_and_an_empty_one_is_not(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        insert(conn, topic, "k", None)
        insert(conn, topic, "k", b"")
        wait_published(conn)
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [None, b""]


@pytest.mark.feature("S-81")
def test_messages_without_a_key_are_spread_over_all_partitions(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        for number in range(40):
            insert(conn, topic, None, str(number))
        wait_published(conn)
    spread = Counter(record.partition for record in read_topic(bootstrap_servers, topic))
    assert spread == {0: 10, 1: 10, 2: 10, 3: 10}


@pytest.mark.feature("S-82", "S-101")
def test_the_rows_queue_selector_and_order_key_choose_the_partition(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        insert(conn, topic, "any", "queue", queue=3)
        insert(conn, topic, "any", "modulo", order_key=b"6", selector="modulo")
        insert(conn, topic, "any", "negative", order_key=b"-1", selector="modulo")
        insert(conn, topic, "any", "order key", order_key=b"o-77")
        wait_published(conn)
    where = {record.value: record.partition for record in read_topic(bootstrap_servers, topic)}
    assert where == {
        b"queue": 3,
        b"modulo": 2,
        b"negative": 3,
        b"order key": (murmur2(b"o-77") & 0x7FFFFFFF) % 4,
    }


@pytest.mark.feature("S-14", "S-33")
def test_rolled_back_messages_leave_neither_record_nor_gap(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        for number in range(60):
            with conn.transaction(force_rollback=number % 3 == 0):
                insert(conn, topic, f"k{number % 7}", f"k{number % 7}:{number}")
        wait_published(conn)
        records = read_topic(bootstrap_servers, topic)
    assert not compare(records, [(f"k{n % 7}", n) for n in range(60) if n % 3]).broken
    assert [record.offset for record in records] == list(range(40))


@pytest.mark.feature("S-104")
def test_each_order_sees_its_steps_in_order(database: str, bootstrap_servers: str, topic: str) -> None:
    steps = ["创建订单", "支付", "发货", "收货", "五星好评"]
    with connect(database) as conn, RelayProcess(database, bootstrap_servers):
        for number in range(5, 25):
            order = number // 5
            insert(
                conn,
                topic,
                str(number),
                f"{order}:{number}",
                order_key=str(order).encode(),
                tags=[steps[number % 5]],
            )
        wait_published(conn)
    seen: dict[str, list[str | None]] = {}
    for record in read_topic(bootstrap_servers, topic):
        seen.setdefault(by_key_and_version(record)[0], []).append(record.header("outbox-tags"))
    assert seen == {str(order): steps for order in range(1, 5)}
