"""RocketMQ's own examples, with real processes from the producer to a stock consumer."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.application_process import Child, run
from tests.support.kafka_records import read_topic
from tests.support.ordered_producer import TAGS
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.waiting import wait_until

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.feature("S-39", "S-101", "S-104")
def test_the_steps_of_each_order_arrive_in_one_partition_in_order(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with RelayProcess(database, bootstrap_servers) as relay, connect(database) as conn:
        run(SUPPORT / "ordered_producer.py", database, topic)
        wait_published(conn)
        relay.stop()
    records = read_topic(bootstrap_servers, topic)
    assert len(records) == 20
    for order in range(1, 5):
        steps = [r for r in records if r.value is not None and f"订单 {order}:" in r.value.decode()]
        assert {record.partition for record in steps} == {order % 4}
        assert [record.header("outbox-tags") for record in steps] == list(TAGS)
        assert [record.header("outbox-keys") for record in steps] == [
            f"uniqueId:{i}" for i in range(order * 5, order * 5 + 5)
        ]
        assert [record.value for record in steps] == [
            f"Hello RocketMQ 订单 {order}: {tag}".encode() for tag in TAGS
        ]
    assert len({record.message_id for record in records}) == 20


@pytest.mark.feature("S-02", "S-06", "S-20", "S-40", "S-45")
def test_a_payment_whose_confirmation_was_lost_is_published_after_a_check(
    database: str, make_database: MakeDatabase, bootstrap_servers: str, topic: str
) -> None:
    bank_dsn = make_database(migrated=False)
    states = "SELECT status FROM outbox.message_status"
    history = "SELECT kind, answer, to_state, actor FROM outbox.event ORDER BY happened_at"
    program = SUPPORT / "payment_producer.py"
    with (
        connect(bank_dsn) as bank,
        connect(database) as conn,
        RelayProcess(database, bootstrap_servers) as relay,
    ):
        bank.execute("CREATE TABLE charge (payment text PRIMARY KEY, amount numeric NOT NULL)")
        with Child(program, "pay", database, bank_dsn, topic) as child:
            assert child.wait() == -signal.SIGKILL, child.output
        assert bank.execute("SELECT payment, amount FROM charge").fetchall() == [("p-7", 42)]
        assert conn.execute(states).fetchall() == [("UNKNOWN",)], "charged, and nobody knows"
        assert not read_topic(bootstrap_servers, topic)
        with Child(program, "serve", database, bank_dsn, topic):
            wait_until(lambda: conn.execute(states).fetchall() == [("PUBLISHED",)], "it is published")
        relay.stop()
        born, check, decided = conn.execute(history).fetchall()
    assert born[:3] == ("transition", None, "UNKNOWN")
    assert check[:3] == ("check", "COMMIT", None)
    assert decided[:3] == ("transition", None, "COMMITTED")
    assert decided[3].startswith("checker:payments@")
    (record,) = read_topic(bootstrap_servers, topic)
    assert record.value == "paid: 42 €".encode()
    assert record.header("outbox-tags") == "paid"
    assert record.header("outbox-producer-group") == "payments"
