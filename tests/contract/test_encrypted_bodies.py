"""Encryption works alike on every adapter: the key belongs to the transaction that sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codecs import Codec, Encoded, ErasedError, Received
from outbox.drivers import psycopg_sync
from outbox.errors import IdempotencyConflictError, InvalidMessageError, MessageTooLargeError
from outbox.operations.idempotency import digest_of
from outbox.statements import Plan
from tests.support.adapter_callers import ALIASES, KINDS, TABLE, Caller, make_caller
from tests.support.django_project import alias_of, databases
from tests.support.encrypted_bodies import ROW, Record, encryption, records
from tests.support.locks import see_blocked
from tests.support.plain_inserts import Connection, connect

pytestmark = pytest.mark.feature("H-25")
PLAIN = "Ada Lovelace"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Another connection, in autocommit: it sees what is committed."""
    with connect(database) as conn:
        conn.execute(TABLE)
        yield conn


@pytest.fixture(params=KINDS)
def caller(request: pytest.FixtureRequest, database: str, conn: Connection) -> Iterator[Caller]:
    """An application on one adapter, whose outbox encrypts the topic `customers`."""
    with databases(**dict.fromkeys(ALIASES, alias_of(database))):
        made = make_caller(database, request.param, 0)
        made.outbox = type(made.outbox)("orders", codecs={"customers": encryption()})
        yield made
        made.close()


def read(dsn: str, record: Record, codec: Codec | None = None) -> bytes:
    """Decode a body as another process does."""
    with psycopg.connect(dsn) as conn:
        return psycopg_sync.run(conn, (codec or encryption()).decode(record, record.body))


def keys(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT subject, destroyed_at IS NULL FROM outbox.subject_key ORDER BY 1, 2"
    ).fetchall()


def customer(key: str = "4711", **options: Any) -> Message:
    return Message("customers", key, PLAIN, **options)


def test_the_row_has_the_body_encrypted_and_another_process_reads_it(
    caller: Caller, conn: Connection, database: str
) -> None:
    caller.call("send", customer(headers={"lang": "en"}))
    caller.call("send_many", [customer("4712"), Message("orders", "o", PLAIN), customer("4711")])
    caller.call("prepare", customer("4713"))
    caller.call("send", Message("customers", "4711", None))
    caller.commit()
    found = records(conn.execute(ROW).fetchall())
    sent = [each for each in found if each.topic == "customers" and each.body is not None]
    assert [each.key for each in sent] == [b"4711", b"4712", b"4711", b"4713"]
    assert [read(database, each) for each in sent] == [PLAIN.encode()] * 4
    assert sent[0].headers["lang"] == "en"
    assert {each.body for each in found if each.topic == "orders"} == {PLAIN.encode()}
    assert {each.body for each in found} >= {None}, "a tombstone stays one"
    assert keys(conn) == [("customer/4711", True), ("customer/4712", True), ("customer/4713", True)]
    in_clear = conn.execute(
        "SELECT count(*) FROM outbox.message m WHERE topic = 'customers' AND m::text LIKE %s",
        [f"%{PLAIN.encode().hex()}%"],
    ).fetchone()
    assert in_clear == (0,)


def test_a_key_whose_transaction_is_rolled_back_was_never_there(
    caller: Caller, conn: Connection, database: str
) -> None:
    caller.call("send", customer())
    caller.call("send", customer())
    caller.rollback()
    assert keys(conn) == []
    caller.call("send", customer())
    caller.commit()
    (record,) = records(conn.execute(ROW).fetchall())
    assert read(database, record) == PLAIN.encode()


def test_an_idempotent_send_is_compared_before_it_is_encrypted(caller: Caller, conn: Connection) -> None:
    first = caller.call("send", customer(), idempotency_key="r1")
    again = caller.call("send", customer(), idempotency_key="r1")
    assert (again.message_id, again.duplicate) == (first.message_id, True)
    with pytest.raises(IdempotencyConflictError):
        caller.call("send", Message("customers", "4711", "another"), idempotency_key="r1")
    caller.commit()
    (digest,) = conn.execute("SELECT digest FROM outbox.idempotency").fetchone() or (b"",)
    assert digest != digest_of(customer()), "the body could be guessed from a digest that has no secret"


def test_a_new_message_of_an_erased_subject_gets_a_new_key(
    caller: Caller, conn: Connection, database: str
) -> None:
    caller.call("send_many", [customer(), customer()])
    caller.commit()
    assert conn.execute("SELECT count(*) FROM outbox.destroy_keys('customer/4711')").fetchone() == (1,)
    caller.call("send", customer())
    caller.commit()
    *old, new = records(conn.execute(ROW).fetchall())
    for each in old:
        with pytest.raises(ErasedError):
            read(database, each)
    assert read(database, new) == PLAIN.encode(), "the process that sends knew the destroyed key"
    assert keys(conn) == [("customer/4711", True), (None, False)]


class Blocking(Codec):
    """Waits for something other than the database: each step runs in a thread."""

    header_names = frozenset({"by"})
    blocks = True

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        yield from ()
        return Encoded(body + b"!", {"by": threading.current_thread().name})

    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        yield from ()
        return body[:-1]


def test_a_codec_that_waits_keeps_no_event_loop_busy(caller: Caller, conn: Connection) -> None:
    caller.outbox = type(caller.outbox)("orders", codecs={"customers": Blocking()})
    caller.call("send", customer())
    caller.call("send_many", [customer()])
    caller.call("prepare", customer())
    with pytest.raises(InvalidMessageError, match="'by' is written by the codec of topic 'customers'"):
        caller.call("send", customer(headers={"by": "me"}))
    caller.commit()
    found = records(conn.execute(ROW).fetchall())
    assert [each.body for each in found] == [f"{PLAIN}!".encode()] * 3
    is_async = "Async" in type(caller.outbox).__name__
    assert [each.headers["by"] != "MainThread" for each in found] == [is_async] * 3


def test_the_limit_of_a_topic_counts_what_the_codec_makes(caller: Caller, conn: Connection) -> None:
    caller.call("register_topic", "customers", 1, max_message_bytes=600)
    with pytest.raises(MessageTooLargeError):
        caller.call("send", Message("customers", "4711", "x" * 300))
    caller.rollback()
    caller.outbox = type(caller.outbox)("orders")
    caller.call("register_topic", "customers", 1, max_message_bytes=600)
    caller.call("send", Message("customers", "4711", "x" * 300))
    caller.commit()


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_first_key_of_a_subject_is_made_by_one_of_two(
    database: str, conn: Connection, is_kept: bool
) -> None:
    """The second transaction waits for the first, and makes its own key if that one gives up."""
    first, second = psycopg.connect(database), psycopg.connect(database)
    with first, second, ThreadPoolExecutor(1) as pool:
        Outbox(codecs={"customers": encryption()}).send(first, customer())
        step = pool.submit(Outbox(codecs={"customers": encryption()}).send, second, customer())
        see_blocked(conn, second, step)
        if is_kept:
            first.commit()
        else:
            first.rollback()
        step.result()
        second.commit()
    assert keys(conn) == [("customer/4711", True)]
    found = records(conn.execute(ROW).fetchall())
    assert [read(database, each) for each in found] == [PLAIN.encode()] * (2 if is_kept else 1)


def test_a_key_destroyed_while_a_message_is_sent_erases_it_too(database: str, conn: Connection) -> None:
    outbox = Outbox(codecs={"customers": encryption()})
    with psycopg.connect(database) as sender:
        outbox.send(sender, customer())
        sender.commit()
        outbox.send(sender, customer())
        conn.execute("SET lock_timeout = '5s'; SELECT outbox.destroy_keys('customer/4711')")
        sender.commit()
    for record in records(conn.execute(ROW).fetchall()):
        with pytest.raises(ErasedError):
            read(database, record)


def test_keys_of_another_database_are_read_there(database: str, conn: Connection) -> None:
    with psycopg.connect(database) as sender:
        Outbox(codecs={"customers": encryption()}).send(sender, customer())
    (record,) = records(conn.execute(ROW).fetchall())
    plan = encryption(database=database).decode(record, record.body)
    with pytest.raises(StopIteration) as done:
        next(plan)  # it asks nothing of the connection of the listener
    assert done.value.value == PLAIN.encode()
