"""What outbox.message refuses when a producer inserts, with and without a stated lane, and what it must take."""

from __future__ import annotations

import contextlib
import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from outbox import Message, Outbox
from outbox.errors import OutboxError
from outbox.operations.size import record_size
from outbox.wire import order_header
from tests.support.insert_fuzzing import FORGERIES

Columns = dict[str, Any]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOPICS = """
INSERT INTO outbox.topic (name, message_type, partitions, selector, max_message_bytes) VALUES
    ('orders', 'MIXED', 4, NULL, 1048588), ('normal', 'NORMAL', 4, NULL, 1048588), ('fifo', 'FIFO', 4, NULL, 1048588),
    ('delay', 'DELAY', 4, NULL, 1048588), ('halves', 'TRANSACTION', 4, NULL, 1048588),
    ('numbers', 'MIXED', 4, 'modulo', 1048588), ('own', 'MIXED', 4, 'by_region', 1048588),
    ('rocketmq', 'MIXED', 4, 'java_hash', 1048588), ('librdkafka', 'MIXED', 4, 'crc32', 1048588),
    ('small', 'MIXED', 4, NULL, 1000);
INSERT INTO outbox.producer_group (name, message_type) VALUES ('plain', 'NORMAL'), ('tx', 'TRANSACTION');
"""
NOT_TEXT: list[Any] = [
    ["x"], "x", 1, None, {"a": ["x"]}, {"a": []}, {"a": [None]}, {"a": [[1]]}, {"a": {}}, {"a": 1}, {"a": True},
    {"ok": "x", "a": {"b": "c"}}, {"a\"": 1}, {"a": "\": \"", "b": 1},
]  # fmt: skip
REFUSED: list[tuple[str, Columns]] = [
    *(("message_topic_is_legal", {"topic": topic}) for topic in ("", ".", "..", "or ders", "ü", "a\nb", "t" * 250)),
    *(("message_topic_is_legal", {"topic": topic}) for topic in ("\n", "a\n", "\na", f"{TRACE}\na", f"\n{TRACE}\na")),
    *FORGERIES,
    ("message_queue_is_a_partition", {"queue": -1}),
    ("message_queue_is_a_partition", {"queue": 4}),
    ("message_queue_is_a_partition", {"queue": 2**31 - 1}),
    ("message_selector_is_known", {"selector": "nosuch", "key": b"1"}),
    ("message_selector_is_known", {"topic": "own", "key": b"1"}),
    ("message_text_is_short", {"selector": ""}),
    ("message_selector_has_its_key", {"selector": "modulo", "key": b"text"}),
    ("message_selector_has_its_key", {"selector": "modulo", "key": "٣".encode()}),
    ("message_selector_has_its_key", {"selector": "modulo", "key": b"1" * 41}),
    ("message_selector_has_its_key", {"selector": "modulo", "topic": "not-registered"}),
    ("message_selector_has_its_key", {"selector": "murmur2"}),
    ("message_selector_has_its_key", {"topic": "numbers", "key": b"text"}),
    ("message_selector_has_its_key", {"selector": "java_hash"}),
    ("message_selector_has_its_key", {"selector": "java_hash", "key": b"\xff"}),
    ("message_selector_has_its_key", {"selector": "java_hash", "order_key": b"a\0", "key": b"a"}),
    ("message_selector_has_its_key", {"selector": "crc32"}),
    ("message_selector_has_its_key", {"topic": "rocketmq", "key": b"\xff"}),
    *(("message_headers_are_text", {"headers": Jsonb(headers)}) for headers in NOT_TEXT),
    *(
        ("message_header_is_not_reserved", {"headers": Jsonb({name: "x"})})
        for name in ("", "outbox-id", "OUTBOX-", "Outbox-Tags", "traceparent", "TraceParent")
    ),
    ("message_header_is_not_reserved", {"headers": Jsonb({"a": "x", "outbox-id": "y"})}),
    *(("message_tags_are_separable", {"tags": tags}) for tags in ([""], [None], ["a", None], ["a|b"], ["a", ""])),
    ("message_tags_are_separable", {"tags": [["a"], ["b"]]}),
    *(
        ("message_index_keys_are_separable", {"index_keys": keys})
        for keys in ([""], [None], ["a b"], ["a", "b\n"], ["a\tb"], [["a"], ["b"]])
    ),
    *(
        ("message_traceparent_is_w3c", {"traceparent": trace})
        for trace in ("", "zzz", TRACE.upper(), TRACE + "0", TRACE + "\n", TRACE.replace("-", "0"), "-" * 55)
    ),
    ("message_check_after_is_of_a_half", {"check_after": "5 s"}),
    ("message_check_after_is_a_delay", {"check_after": "-1 s", "state": "UNKNOWN", "producer_group": "g"}),
    ("message_check_after_is_a_delay", {"check_after": "178000000 years", "state": "UNKNOWN", "producer_group": "g"}),
    *(("message_deliver_at_is_a_time", {"deliver_at": at}) for at in ("infinity", "-infinity", "10000-01-01")),
    *(
        ("message_deliver_before_is_later", {"deliver_before": before, "deliver_at": at})
        for before, at in (
            ("infinity", None), ("10000-01-01", None), ("2300-01-01", "2300-01-01"), ("2200-01-01", "2300-01-01"),
        )
    ),
    *(
        ("message_text_is_short", {name: text})
        for name in ("producer_group", "transaction_id", "checker", "biz_type", "biz_id")
        for text in ("", "x" * 256)
    ),
    ("message_order_key_is_short", {"order_key": b"x" * 1048577}),
    ("message_fits_the_topic", {"body": b"x" * 1048588}),
    ("message_fits_the_topic", {"topic": "small", "key": b"x" * 900}),
    ("message_fits_the_topic", {"topic": "small", "headers": Jsonb({str(n): "x" for n in range(200)})}),
    ("message_is_not_too_large", {"topic": "not-registered", "body": b"x" * 67108865}),
    ("message_type_is_the_topics", {"topic": "halves"}),
    ("message_type_is_the_topics", {"topic": "fifo"}),
    ("message_type_is_the_topics", {"topic": "delay"}),
    ("message_type_is_the_topics", {"topic": "normal", "order_key": b"k"}),
    ("message_type_is_the_topics", {"topic": "normal", "deliver_at": "2300-01-01"}),
    ("message_type_is_the_topics", {"topic": "fifo", "state": "UNKNOWN", "producer_group": "g"}),
    ("message_type_is_the_groups", {"producer_group": "tx"}),
    ("message_type_is_the_groups", {"producer_group": "plain", "state": "UNKNOWN"}),
    ("message_half_has_a_group", {"state": "UNKNOWN"}),
    *(
        ("message_half_has_a_group", {"state": "UNKNOWN", "producer_group": group})
        for group in (" ", "a b", "a\n", "\ta", "a\x01", "a\x7f")
    ),
    ("message_state_is_a_birth", {"state": "DEAD"}),
    ("message_id_is_ours_or_foreign", {"message_id": UUID("ffffffff-0001-8000-8000-000000000000")}),
]  # fmt: skip
ACCEPTED: list[Columns] = [
    {}, {"topic": "a.b_C-9", "key": b"", "body": b"", "tags": ["N", "NULLABLE", "NULL", "日本", "a b", '"', "\\"]},
    {"topic": "not-registered", "queue": 2**31 - 1}, {"queue": 3}, {"queue": 0, "selector": "by_region"},
    {"selector": "modulo", "key": b"-17"}, {"selector": "random"}, {"selector": "round_robin"},
    {"selector": "murmur2", "order_key": b""}, {"topic": "own", "queue": 1}, {"topic": "own", "selector": "random"},
    {"selector": "java_hash", "key": "订单".encode()}, {"selector": "java_hash", "key": b"", "topic": "not-registered"},
    {"topic": "rocketmq"}, {"topic": "librdkafka", "key": b"\xff\0"}, {"selector": "crc32", "order_key": b""},
    {"topic": "numbers", "order_key": b"7", "key": b"x"}, {"topic": "numbers", "queue": 1},
    {"headers": Jsonb({})}, {"headers": Jsonb({"a": None, "trace": "outbox-id", "x-outbox-": '"}{[]:,\\', "ü": "\n"})},
    {"headers": Jsonb({"o": "", "t": "", "tracestate": "a=b", "outboxes": "x"})}, {"index_keys": ["a", "|", "{}", "N"]},
    {"traceparent": TRACE}, {"check_after": "0", "state": "UNKNOWN", "producer_group": "g"},
    {"deliver_at": "9999-12-30", "topic": "delay"}, {"deliver_at": "0001-01-02"},
    {"deliver_before": "9999-12-30", "deliver_at": "9999-12-29"}, {"deliver_before": "0001-01-02"},
    {"topic": "halves", "state": "UNKNOWN", "producer_group": "tx"}, {"topic": "fifo", "key": b"k"},
    {"producer_group": "ü" * 255, "biz_id": "x" * 255}, {"order_key": b"x" * 1048576}, {"topic": "normal", "key": b"k"},
    {"message_id": UUID("0af76519-16cd-43dd-8448-eb211c80319c")},
]  # fmt: skip


@pytest.fixture
def producer(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of the producers' role, in one transaction that is rolled back."""
    with psycopg.connect(database) as connection:
        connection.execute(TOPICS)
        connection.execute("SET ROLE outbox_producer")
        yield connection
        connection.rollback()


def insert(connection: psycopg.Connection[Any], columns: Columns) -> int:
    """Insert one row and return its id; the transaction survives a refusal."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    values = sql.SQL(", ").join(sql.Placeholder() * len(columns))
    statement = sql.SQL("INSERT INTO outbox.message ({}) VALUES ({}) RETURNING id").format(names, values)
    with connection.transaction():
        row = connection.execute(statement, list(columns.values())).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.feature("S-74", "S-77")
@pytest.mark.parametrize("stated", [{}, {"lane": 3}], ids=["without lane", "with lane"])
def test_what_the_library_refuses_the_table_refuses(
    producer: psycopg.Connection[Any], stated: Columns
) -> None:
    wrong = []
    for rule, columns in REFUSED:
        try:
            insert(producer, {"topic": "orders", **columns, **stated})
        except psycopg.errors.CheckViolation as error:
            diag = error.diag
            if diag.constraint_name != rule or not diag.message_hint or not diag.column_name:
                wrong.append((rule, str(columns)[:80], diag.constraint_name, diag.column_name))
        else:
            wrong.append((rule, str(columns)[:80], "accepted", None))
    assert wrong == []


@pytest.mark.parametrize("stated", [{}, {"lane": 3}], ids=["without lane", "with lane"])
def test_what_is_only_unusual_is_accepted(producer: psycopg.Connection[Any], stated: Columns) -> None:
    for columns in ACCEPTED:
        insert(producer, {"topic": "orders", **columns, **stated})


def test_an_ordinary_row_is_not_looked_at_closely(producer: psycopg.Connection[Any]) -> None:
    producer.execute("RESET ROLE")
    producer.execute(
        """CREATE OR REPLACE FUNCTION outbox.check_record(m outbox.message) RETURNS void LANGUAGE plpgsql
           AS $$ BEGIN RAISE 'looked at closely' USING ERRCODE = 'raise_exception'; END $$"""
    )
    producer.execute("SET ROLE outbox_producer")
    ordinary = {
        "headers": Jsonb({"content-type": "text/plain", "a": None}),
        "tags": ["paid", "订单"],
        "index_keys": ["o-1", "o-2"],
        "traceparent": TRACE,
        "producer_group": "g",
    }
    insert(producer, {"topic": "orders"})
    insert(producer, {"topic": "a.b_C-9", **ordinary})
    with pytest.raises(psycopg.errors.RaiseException):
        insert(producer, {"topic": "a\n", **ordinary})


def test_a_stated_lane_is_trusted_only_from_roles_that_may(producer: psycopg.Connection[Any]) -> None:
    unchecked = {"topic": "orders", "lane": 1, "headers": Jsonb({"a": 1})}
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(producer, unchecked)
    producer.execute("RESET ROLE")
    name = f"test_{uuid4().hex[:12]}"
    producer.execute(f"CREATE ROLE {name} IN ROLE outbox_producer, outbox_trusted_producer".encode())
    producer.execute(f"SET ROLE {name}".encode())
    insert(producer, unchecked)
    insert(producer, {**unchecked, "state": "UNKNOWN", "producer_group": "g"})
    insert(producer, {**unchecked, "deliver_at": "2300-01-01"})
    producer.execute("RESET ROLE")
    beside = "SELECT (SELECT count(*) FROM outbox.event), (SELECT count(*) FROM outbox.waiting)"
    assert producer.execute(beside).fetchone() == (1, 1)  # a birth and a wait
    producer.execute(f"SET ROLE {name}".encode())
    for wrong in (
        {"state": "UNKNOWN"},
        {"state": "PUBLISHED"},
        {"state": "UNKNOWN", "producer_group": "g", "lane": None},
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(producer, {**unchecked, **wrong})


def test_a_function_of_a_trusted_owner_makes_no_caller_trusted_with_half_messages(
    producer: psycopg.Connection[Any],
) -> None:
    producer.execute("RESET ROLE")
    producer.execute("""
        CREATE FUNCTION public.prepare() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
            INSERT INTO outbox.message (topic, lane, headers, state, producer_group)
            VALUES ('orders', 1, '{"a": 1}', 'UNKNOWN', 'g') $$
    """)
    producer.execute("SELECT public.prepare()")  # by its owner, who is trusted
    producer.execute("SET ROLE outbox_producer")
    with pytest.raises(psycopg.errors.CheckViolation, match="'a' is not a string"):
        producer.execute("SELECT public.prepare()")


def test_an_id_from_outside_names_one_message_only(producer: psycopg.Connection[Any]) -> None:
    mine = uuid4()
    insert(producer, {"topic": "orders", "message_id": mine})
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        insert(producer, {"topic": "other", "message_id": mine, "lane": 1})
    assert caught.value.diag.constraint_name == "message_id_is_unique"
    with pytest.raises(psycopg.errors.UniqueViolation), producer.transaction():
        producer.execute(
            "INSERT INTO outbox.message (topic, message_id) SELECT 'orders', %s FROM generate_series(1, 2)",
            [uuid4()],
        )


@pytest.fixture
def trusted(producer: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """The same session as a role whose rows with a stated lane are not checked."""
    producer.execute("RESET ROLE")
    name = f"test_{uuid4().hex[:12]}"
    producer.execute(f"CREATE ROLE {name} IN ROLE outbox_producer, outbox_trusted_producer".encode())
    producer.execute(f"SET ROLE {name}".encode())
    return producer


def test_the_library_sends_an_id_of_your_own_once_also_as_a_trusted_role(
    trusted: psycopg.Connection[Any],
) -> None:
    outbox, mine = Outbox("g"), uuid4()
    outbox.send(trusted, Message("orders", message_id=mine))
    again = Message("orders", key="k", message_id=mine)
    sends: list[Callable[[], object]] = [
        lambda: outbox.send(trusted, again),
        lambda: outbox.send(trusted, again, ordered=True),
        lambda: outbox.send_many(trusted, [Message("orders"), again]),
        lambda: outbox.send_many(
            trusted, [Message("orders", key="k", message_id=uuid4()), again], ordered=True
        ),
    ]
    for send in sends:
        with pytest.raises(psycopg.errors.UniqueViolation) as caught, trusted.transaction():
            send()
        assert caught.value.diag.constraint_name == "message_id_is_unique"


def test_the_tables_record_size_is_the_librarys(database: str) -> None:
    chance = random.Random(4)
    text = string.ascii_letters + 'äß日"\\\n'
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES ('t', 1, 2000000000)"
        )
        for _ in range(60):
            message = Message(
                "t",
                key=chance.choice([None, b"", b"k" * chance.randrange(9000)]),
                body=chance.choice([None, b"", b"b" * chance.randrange(2_000_000)]),
                headers={
                    "".join(chance.choices(text, k=chance.randrange(1, 90))): chance.choice(
                        [None, "", "v" * 8200]
                    )
                    for _ in range(chance.randrange(0, 70))
                },
                tags=chance.choice([(), ("a", "日本")]),
                index_keys=chance.choice([(), ("x" * 80, "y")]),
                traceparent=chance.choice([None, TRACE]),
                transaction_id=chance.choice([None, "tx" * 60]),
                order_key=chance.choice(
                    [None, "o", "订单", b"\xff", b"a\x00b", b"hex:", b"o" * 255, b"o" * 9000]
                ),
                queue=chance.choice([None, None, 0]),
            )
            receipt = Outbox("gruppe").send(connection, message)
            row = connection.execute(
                "SELECT outbox.record_size(m), "
                "(SELECT array_agg(ARRAY[o.name, o.value]) FROM outbox.order_headers(m) o) "
                "FROM outbox.message m WHERE id = %s",
                [receipt.id],
            ).fetchone()
            size = record_size(message, "gruppe")
            stated = order_header(message.key_bytes, message.order_key_bytes, message.queue, None)
            assert row is not None
            assert row[1] == (None if stated is None else [list(stated)])
            assert size - 700 <= row[0] <= size  # never more: what the library sends, the table takes


def test_the_header_of_an_order_counts_in_the_tables_sum(database: str) -> None:
    given: list[Columns] = [{}, {"queue": 10}, {"order_key": b"o-1"}]
    with psycopg.connect(database) as connection:
        for columns in given:
            insert(connection, {"topic": "t", "key": b"k", "body": b"", **columns})
        rows = connection.execute("SELECT outbox.record_size(m) FROM outbox.message m ORDER BY id").fetchall()
    bare, for_queue, by_key = (size for (size,) in rows)
    assert for_queue == bare + len("outbox-queue10") + 2
    assert by_key == bare + len("outbox-order-keyo-1") + 2


def test_what_the_library_sends_the_table_takes(producer: psycopg.Connection[Any]) -> None:
    """The library refuses by its own errors; what it does not refuse, the table accepts."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    outbox = Outbox("g", selectors={"by_region": lambda queues, message, arg: 2})
    sent = 0
    for topic in ("orders", "normal", "fifo", "delay", "halves", "numbers", "own", "small"):
        for message in (
            Message(topic),
            Message(topic, key="k", body=b"x" * 700),
            Message(topic, key="7", deliver_at=soon),
            Message(
                topic, order_key=7, selector="modulo", traceparent=TRACE, tags="N||NULL", index_keys=["ü"]
            ),
            Message(topic, queue=1, headers={"a": None, "b": "\\"}),
            Message(topic, message_id=uuid4()),
        ):
            with contextlib.suppress(OutboxError):
                outbox.send(producer, message)
                sent += 1
            with contextlib.suppress(OutboxError):
                outbox.send(producer, message, idempotency_key=uuid4().hex)
                sent += 1
        with contextlib.suppress(OutboxError):
            outbox.prepare(producer, Message(topic, key="5"), check_after=1)
            sent += 1
    assert sent > 40
    assert len(outbox.send_many(producer, [Message("orders", key=str(n)) for n in range(50)])) == 50


def test_a_bound_group_is_its_members_alone(producer: psycopg.Connection[Any]) -> None:
    producer.execute("RESET ROLE")
    name = f"test_{uuid4().hex[:12]}"
    producer.execute(f"CREATE ROLE {name} IN ROLE outbox_producer".encode())
    producer.execute("INSERT INTO outbox.producer_group (name, role) VALUES ('billing', %s)", [name])
    key = """INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
             VALUES ('billing', 'k', '', 1, gen_random_uuid())"""
    producer.execute("SET ROLE outbox_producer")
    for lane in ({}, {"lane": 1}):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="billing"):
            insert(producer, {"topic": "orders", "producer_group": "billing", **lane})
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="billing"), producer.transaction():
        producer.execute(key)
    producer.execute(f"SET ROLE {name}".encode())
    insert(producer, {"topic": "orders", "producer_group": "billing"})
    producer.execute(key)
