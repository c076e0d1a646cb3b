"""Serves the console until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import socket

import uvicorn
from starlette.types import ASGIApp

from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("console")


class PortError(OperatorError):
    """The console cannot listen at its address."""


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address of this machine.

    Args:
        host: the address.
        port: 0: the system chooses one.

    Raises:
        PortError: it is taken, or not of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise PortError(
            f"cannot listen at {host} port {port}: {reason}\n"
            "Give another --port, or an address of this machine as --host; --port 0 lets the system choose a port."
        ) from None


def server_of(application: ASGIApp) -> uvicorn.Server:
    """Return what serves it; pages that are open when it ends are disconnected after a second."""
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    return uvicorn.Server(config)


def serve_until_signal(application: ASGIApp, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    # uvicorn raises the signal again once it has ended; that is all there is to do then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    server_of(application).run(sockets=[listener])
