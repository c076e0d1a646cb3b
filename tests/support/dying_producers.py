"""Producers that are killed, one at each step of a programming model: `… MODEL DSN BUSINESS_DSN TOPIC PARENT_PID`.

For each step a process is forked that sends one message by the model and kills itself, with SIGKILL, right before that
step; where the step is a COMMIT, another one dies after the COMMIT went out and before its answer came. It ends when a
process has come through, and prints a line for each: the message's biz_id, how it died, and the step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NoReturn

import psycopg

from outbox import Message, Outbox
from outbox.records import MessageView
from outbox.rocketmq import LocalMessage, Producer, TransactionMQProducer
from tests.support.relay_entry import die_with

TABLES = """
    CREATE TABLE IF NOT EXISTS payment (biz_id text PRIMARY KEY, state text NOT NULL)
"""
PAY = """
    INSERT INTO payment VALUES (%s, 'paid') ON CONFLICT (biz_id) DO UPDATE SET state = 'paid'
"""


class Death:
    """Knows at which step this process dies; `before(name)` and `commit(name, conn)` are such steps."""

    def __init__(self, at: int, report: int, *, after_sending: bool) -> None:
        self._at, self._report, self._after_sending = at, report, after_sending
        self._steps = 0

    def before(self, name: str, conn: psycopg.Connection[Any] | None = None) -> None:
        """Die here, if it is time; a COMMIT on `conn` may go out first."""
        if self._steps == self._at:
            if conn is not None and self._after_sending:
                conn.pgconn.send_query(b"COMMIT")
                conn.pgconn.flush()
            self._die(f"{name}{' (COMMIT)' if conn is not None else ''}")
        self._steps += 1

    def _die(self, name: str) -> NoReturn:
        os.write(self._report, name.encode())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def commit(self, name: str, conn: psycopg.Connection[Any]) -> None:
        """Commit, if it is not time to die."""
        self.before(name, conn)
        conn.commit()


class DyingIO:
    """Stands in for a producer's driver, and dies before one of the steps that a flow asks of it."""

    def __init__(self, io: Any, death: Death) -> None:
        self._io, self._death = io, death
        self._begun: dict[int, psycopg.Connection[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._io, name)
        if name not in {"open", "close", "begin", "commit", "rollback", "run", "call"}:
            return method

        def step(*args: Any, **options: Any) -> Any:
            told = f"{name} {args[1].__name__}" if name == "run" else name
            self._death.before(told, self._begun[id(args[0])] if name == "commit" else None)
            done = method(*args, **options)
            if name == "begin":
                self._begun[id(done)] = args[0]
            return done

        return step


class Application:
    """One payment by each of the models; its rows are beside the outbox, or in a database of their own."""

    def __init__(self, databases: tuple[str, str], topic: str, group: str, biz_id: str, death: Death) -> None:
        self._dsn, self._business_dsn = databases
        self._group, self._death = group, death
        self._message = Message(topic, key=biz_id, body=biz_id, biz_type="payment", biz_id=biz_id)

    def pay(self, conn: psycopg.Connection[Any]) -> None:
        """The business write."""
        self._death.before("write")
        conn.execute(PAY, [self._message.biz_id])

    def verbs(self) -> None:
        """The half message shares a transaction with the first write, its decision one with the last."""
        outbox = Outbox(self._group)
        with psycopg.connect(self._dsn) as conn:
            self._death.before("first write")
            conn.execute("INSERT INTO payment VALUES (%s, 'pending')", [self._message.biz_id])
            self._death.before("prepare")
            half = outbox.prepare(conn, self._message)
            self._death.commit("end of the first transaction", conn)
            self._death.before("join")
            outbox.join(conn, half)
            self.pay(conn)
            self._death.before("verdict")
            outbox.commit(conn, half)
            self._death.commit("end of the last transaction", conn)
            self._death.before("going on")

    def listener(self) -> None:
        """RocketMQ 4.x, in one database."""

        def execute(msg: LocalMessage, arg: Any) -> bool:
            self.pay(msg.connection)
            self._death.before("answer")
            return True

        self._send_by_listener(execute)

    def listener_elsewhere(self) -> None:
        """RocketMQ 4.x, with the business in another database."""

        def execute(msg: LocalMessage, arg: Any) -> bool:
            with psycopg.connect(self._business_dsn) as conn:
                self.pay(conn)
                self._death.commit("end of the local transaction", conn)
            self._death.before("answer")
            return True

        self._send_by_listener(execute)

    def _send_by_listener(self, execute: Callable[[LocalMessage, Any], bool]) -> None:
        producer = TransactionMQProducer(self._group, self._dsn, listener=Silent(), check=False)
        with producer:
            producer._io = DyingIO(producer._io, self._death)
            producer.send_message_in_transaction(self._message, execute=execute)
            self._death.before("going on")

    def block(self) -> None:
        """RocketMQ 5.x, in one database."""
        producer = Producer(self._dsn, producer_group=self._group, check=False)
        with producer, psycopg.connect(self._dsn) as conn:
            producer._io = DyingIO(producer._io, self._death)
            with producer.begin(conn) as transaction:
                self.pay(conn)
                transaction.send(self._message)
            self._death.before("going on")

    def transaction_elsewhere(self) -> None:
        """RocketMQ 5.x in its own order: local transaction, half message, local commit, commit."""
        producer = Producer(self._dsn, producer_group=self._group, check=False)
        with producer, psycopg.connect(self._business_dsn) as conn:
            producer._io = DyingIO(producer._io, self._death)
            transaction = producer.begin_transaction()
            self.pay(conn)
            producer.send(self._message, transaction)
            self._death.commit("end of the local transaction", conn)
            transaction.commit()
            self._death.before("going on")


class Silent:
    """A listener that is registered because one must be: other processes answer."""

    def check_local_transaction(self, view: MessageView) -> None:
        """Know nothing."""


def deaths(model: str, dsn: str, business_dsn: str, topic: str) -> Iterator[str]:
    """Let one process die at each step; yield what became of it."""
    for at in count():
        reached = ""
        for after_sending in (False, True):
            if after_sending and not reached.endswith("(COMMIT)"):
                continue
            biz_id = f"{model}/{at}{'+' if after_sending else ''}"
            mine, theirs = os.pipe()
            me = os.getpid()
            child = os.fork()
            if not child:
                die_with(me)
                death = Death(at, theirs, after_sending=after_sending)
                application = Application((dsn, business_dsn), topic, model, biz_id, death)
                getattr(application, model)()
                os._exit(0)
            os.close(theirs)
            _, status = os.waitpid(child, 0)
            with os.fdopen(mine, "rb") as told:
                reached = told.read().decode()
            if status == 0:
                yield f"{biz_id} came through"
                return
            assert os.WTERMSIG(status) == signal.SIGKILL, f"{biz_id} ended with status {status}"
            yield f"{biz_id} died {'sending' if after_sending else 'before'} {reached}"


if __name__ == "__main__":
    die_with(int(sys.argv[5]))
    for line in deaths(*sys.argv[1:5]):
        sys.stdout.write(line + "\n")
