"""Serves the console until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import socket

import uvicorn

from outbox_relay.console.app import Console
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


class _Server(uvicorn.Server):
    """Disconnects the open pages before it waits for responses to end: theirs never would."""

    def __init__(self, config: uvicorn.Config, console: Console) -> None:
        super().__init__(config)
        self._console = console

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is served."""
        self._console.end()
        await super().shutdown(sockets)


def server_of(console: Console) -> uvicorn.Server:
    """Return what serves it."""
    config = uvicorn.Config(
        console.application(),
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
    return _Server(config, console)


def serve_until_signal(console: Console, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    # uvicorn raises the signal again once it has ended; that is all there is to do then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    server_of(console).run(sockets=[listener])
