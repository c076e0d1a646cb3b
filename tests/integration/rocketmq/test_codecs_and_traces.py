"""Codecs and traces of RocketMQ's producers: what `Outbox` does with them, for both models, for threads and asyncio."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outbox import Message, Outbox
from outbox.codecs import Codec, Encoded
from outbox.errors import ConfigurationError
from outbox.rocketmq import Producer, TransactionMQProducer
from outbox.statements import Plan
from tests.support.encrypted_bodies import ROW, encryption, records
from tests.support.rocketmq_5x_applications import MakeApp5x
from tests.support.rocketmq_scripts import MakeApp, Truth
from tests.support.traces import Traces, context_of

MESSAGE = Message("customers", key="7", body=b"secret")


class Slow(Codec):
    """Waits for something other than the database, as a store of large bodies does."""

    blocks = True

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        self.threads.append(threading.current_thread())
        yield from ()
        return Encoded(b"slow " + body)

    def decode(self, message: Any, body: bytes) -> Plan[bytes]:
        yield from ()
        return body


def stored(truth: Truth) -> list[bytes]:
    return [record.body for record in records(truth.conn.execute(ROW).fetchall())]


def traceparents(truth: Truth) -> list[str]:
    rows = truth.conn.execute("SELECT traceparent FROM outbox.message ORDER BY id").fetchall()
    return [row[0] for row in rows]


def test_4x_bodies_are_encoded_and_the_listener_gets_what_was_sent(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(options={"codecs": {"customers": encryption()}})
    app.send(MESSAGE)
    (call,) = app.listener.calls
    assert call[0].body == b"secret"
    assert truth.states() == ["COMMITTED"]
    (record,) = records(truth.conn.execute(ROW).fetchall())
    assert b"secret" not in record.body
    with truth.conn.transaction():
        decoded = Outbox()._run(truth.conn, encryption().decode(record, record.body))
    assert decoded == b"secret"


def test_5x_bodies_are_encoded(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x(codecs={"customers": encryption()})
    app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    app.run(transaction.commit())
    assert truth.states() == ["COMMITTED"] * 2
    assert all(b"secret" not in body for body in stored(truth))


def test_a_codec_that_waits_does_not_stop_the_event_loop(make_app_5x: MakeApp5x, truth: Truth) -> None:
    slow = Slow()
    app = make_app_5x(codecs={"customers": slow})
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    assert stored(truth) == [b"slow secret"]
    is_async = hasattr(app, "runner")
    assert (slow.threads == [threading.main_thread()]) is not is_async


def test_4x_messages_carry_the_trace_of_their_send(make_app: MakeApp, truth: Truth) -> None:
    traces = Traces()
    app = make_app(options={"tracing": traces.tracing})
    with traces.tracer.start_as_current_span("request") as request:
        app.send(MESSAGE)
    (create,) = traces.named("create customers")
    assert create.parent == request.get_span_context()
    assert f"-{context_of(create).span_id:016x}-" in traceparents(truth)[0]


def test_5x_messages_carry_the_trace_of_their_send(make_app_5x: MakeApp5x, truth: Truth) -> None:
    traces = Traces()
    app = make_app_5x(tracing=traces.tracing)
    with traces.tracer.start_as_current_span("request"):
        app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    (create,) = traces.named("create customers")
    assert f"-{context_of(create).span_id:016x}-" in traceparents(truth)[0]


@pytest.mark.parametrize("make", [TransactionMQProducer, Producer])
def test_what_is_not_a_codec_is_refused(make: Any) -> None:
    given = ("orders", "") if make is TransactionMQProducer else ("",)
    names = {} if make is TransactionMQProducer else {"producer_group": "orders"}
    with pytest.raises(ConfigurationError, match="codecs"):
        make(*given, **names, check=False, codecs={"customers": encryption})
