"""A PostgreSQL that vanishes without a word is noticed, whoever opens the connections of a consumer."""

from __future__ import annotations

import os
import socket
from typing import Any

import psycopg
import sqlalchemy

from outbox.inbox.sqlalchemy import connections_of
from tests.support.inbox_stage import InboxStage

OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def options(inbox: InboxStage, **settings: Any) -> list[int]:
    """What the socket of a consumer's connection is set to."""
    with (
        inbox.consumer("t", **settings).connect() as conn,
        socket.socket(fileno=os.dup(conn.fileno())) as peer,
    ):
        alive = peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [alive, *(peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS)]


def test_a_callables_connection_is_watched_as_one_of_a_connection_string(inbox: InboxStage) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(inbox.dsn))
    watched = [1, 4, 2, 3, 10_000]
    assert options(inbox) == watched
    assert options(inbox, dsn=lambda: psycopg.connect(inbox.dsn)) == watched
    assert options(inbox, dsn=connections_of(engine)) == watched
    engine.dispose()


def test_what_the_connection_string_of_a_callable_sets_stays(inbox: InboxStage) -> None:
    given: dict[str, Any] = {"keepalives_idle": 77, "tcp_user_timeout": 5000}
    found = options(inbox, dsn=lambda: psycopg.connect(inbox.dsn, **given))
    assert found == [1, 77, 2, 3, 5000]
    assert options(inbox, dsn=lambda: psycopg.connect(inbox.dsn, keepalives=0))[0] == 0
