"""The connections of a RocketMQ producer: errors at once, no threads, nothing kept after the end (ADR 27)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from outbox.rocketmq.connections import AsyncConnections, Connections

PATIENCE = 5.0
"""Seconds after which `take` gives up with an error of its own, `NoConnectionError`."""


class Idle:
    """A connection outside any transaction, as far as `Connections` asks."""

    transaction_status = TransactionStatus.IDLE

    def __init__(self) -> None:
        self.closed = False

    @property
    def info(self) -> Idle:
        return self

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def unreachable() -> Iterator[str]:
    """A DSN whose port refuses connections while the test runs: it is bound, and nothing listens on it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"host=127.0.0.1 port={bound.getsockname()[1]} dbname=outbox user=nobody"


def test_a_server_that_is_down_is_the_drivers_error_without_a_wait(unreachable: str) -> None:
    connections = Connections(unreachable, 1, PATIENCE)
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connections.take()


def test_a_server_that_is_down_is_the_drivers_error_for_asyncio_too(unreachable: str) -> None:
    async def take_twice() -> None:
        connections = AsyncConnections(unreachable, 1, PATIENCE)
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError, match="refused"):
                await connections.take()

    asyncio.run(take_twice())


def test_connections_start_no_thread() -> None:
    before = set(threading.enumerate())
    connections = Connections(Idle, 2, PATIENCE)
    first, second = connections.take(), connections.take()
    connections.give(first)
    connections.give(second)
    assert set(threading.enumerate()) <= before


def test_close_does_not_wait_for_a_connection_in_use_which_is_closed_afterwards() -> None:
    connections = Connections(Idle, 2, PATIENCE)
    idle, in_use = connections.take(), connections.take()
    connections.give(idle)
    connections.close()
    assert (idle.conn.closed, in_use.conn.closed) == (True, False)
    connections.give(in_use)
    assert in_use.conn.closed


def test_a_fresh_connection_leaves_the_idle_ones_that_may_be_broken() -> None:
    connections = Connections(Idle, 2, PATIENCE)
    lease = connections.take()
    connections.give(lease)
    assert connections.take(fresh=True).conn is not lease.conn
    assert connections.take().conn is lease.conn
