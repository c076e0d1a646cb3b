"""The comparison with other outboxes, on real servers: a peer publishes its rows, and the broker's counts are read."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest

from bench.faststream_outbox.side import DEFAULT, STATEMENTS, TUNED, Application
from bench.faststream_outbox.table import create
from bench.harness.topics import append_times, reader, record_count
from bench.load.generator import faststream_headers
from tests.support.kafka_records import read_topic
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PARTITIONS = 4
COUNT = 60
"""Several pages of its default, and more than its workers."""


@pytest.mark.parametrize("subscriber", [DEFAULT, TUNED])
def test_faststream_outbox_publishes_its_rows_with_key_body_and_headers(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    tmp_path: Path,
    subscriber: dict[str, object],
) -> None:
    topic = make_topic(PARTITIONS, message_timestamp_type="LogAppendTime")
    create(database)
    with (
        psycopg.connect(database, autocommit=True) as conn,
        Application(database, bootstrap_servers, [topic], subscriber, tmp_path / "log") as application,
        reader(bootstrap_servers) as consumer,
    ):
        assert record_count(consumer, topic, PARTITIONS) == 0
        for number in range(COUNT):
            headers = faststream_headers(f"order-{number}", uuid.uuid4())
            conn.execute(STATEMENTS["send"], (topic, b"body %d" % number, headers))

        def is_published() -> bool:
            application.check()
            row = conn.execute("SELECT count(*) FROM public.outbox").fetchone()
            return row == (0,)

        wait_until(is_published, "all rows are published and deleted")
        assert record_count(consumer, topic, PARTITIONS) == COUNT
        times = append_times(consumer, topic, PARTITIONS, COUNT)
    records = read_topic(bootstrap_servers, topic)
    assert {(record.key, record.value) for record in records} == {
        (b"order-%d" % number, b"body %d" % number) for number in range(COUNT)
    }
    assert {record.header("source") for record in records} == {"bench"}
    assert times == sorted(record.timestamp / 1000 for record in records)
