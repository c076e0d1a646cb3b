"""Servers that are given by their address: whether they answer, asked before anything is built on them."""

from __future__ import annotations

import socket

import psycopg

from outbox import sessions
from outbox_relay.downloads.errors import StackError
from outbox_relay.text.masking import mask_text

LIMIT = 5
"""Seconds that a given server has to answer."""
_KAFKA_PORT = 9092


def check_postgres(dsn: str) -> None:
    """Open a session and close it. Raises StackError, with the driver's reason and no password, when that fails."""
    try:
        sessions.connect(dsn, connect_timeout=LIMIT).close()
    except psycopg.Error as error:
        problem = mask_text(str(error).strip())
        raise StackError(f"the given PostgreSQL (--dsn, OUTBOX_DSN) does not answer: {problem}") from None


def check_kafka(bootstrap_servers: str) -> None:
    """Connect to one of the brokers; how it wants to be spoken to is the clients' matter.

    Raises StackError, with a reason for each, when none replies.
    """
    problems = []
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host:
            host, port = port, str(_KAFKA_PORT)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LIMIT).close()
        except ValueError:
            problems.append(f"{server!r}: the port must be a number, as in broker:9092")
        except OSError as error:
            problems.append(f"{server.strip()}: {error}")
        else:
            return
    raise StackError(
        "none of the given Kafka brokers (--bootstrap-servers, OUTBOX_BOOTSTRAP_SERVERS) accepts a connection: "
        f"{'; '.join(problems)}. Start them, or leave the option out to start a local one"
    )
