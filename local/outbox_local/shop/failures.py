"""The switches: failures that happen to the shop's processes, each as often as its row in `shop.failure` states.

A failure is used up in a transaction of its own before it happens, so that a process which is started again does not
fail at the same place for ever. If the process dies between the two, the failure has happened earlier than planned,
and nothing else differs.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from typing import Any

import psycopg

from outbox.statements import Statements

SQL = Statements("outbox_local/shop/shop.sql")


class Failure(StrEnum):
    """What can be switched on."""

    CRASH_SERVICE = "crash-service"
    """The shop is killed before the COMMIT of a payment."""
    CRASH_LOGISTICS = "crash-logistics"
    """The consumer of logistics is killed after it has written a shipment, before COMMIT."""
    CONFIRM = "confirm"
    """The shop never confirms the half message of a payment that is committed."""
    BROKER = "broker"
    """Kafka is killed, and started again some seconds later."""


TEXTS = {
    Failure.CRASH_SERVICE: "the shop was killed before the COMMIT of the payment of {order}",
    Failure.CRASH_LOGISTICS: "logistics was killed before the COMMIT of the shipment of {order}",
    Failure.CONFIRM: "the half message of {order} is never confirmed",
}


def switch_on(conn: psycopg.Connection[Any], failure: Failure, times: int = 1) -> None:
    """Let a failure happen so many times more."""
    conn.execute(SQL["switch_on"], {"name": failure, "times": times})


def is_due(conn: psycopg.Connection[Any], failure: Failure, order: str) -> bool:
    """Use up one occurrence of a failure and record that it happens; False when it is not switched on.

    Args:
        conn: a connection in autocommit mode, other than that of the transaction which fails.
        failure: which one.
        order: the order to which it happens.
    """
    with conn.transaction():
        if conn.execute(SQL["take_failure"], {"name": failure}).fetchone() is None:
            return False
        note(conn, failure, TEXTS[failure].format(order=order))
    return True


def note(conn: psycopg.Connection[Any], kind: str, text: str) -> None:
    """Record what happened, for page and proof."""
    conn.execute(SQL["note"], {"kind": kind, "text": text})


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def open_database(dsn: str | None = None) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode, to the database of OUTBOX_DSN unless another one is named."""
    return psycopg.connect(dsn or os.environ["OUTBOX_DSN"], autocommit=True, application_name="outbox shop")
