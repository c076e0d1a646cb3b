"""Clients of a server of probes that never finish their request: each sends one more byte now and then."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

EVERY_S = 0.1


class DrippingClients:
    """Connections to a port of loopback, each of which sends a byte every tenth of a second until its end."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
        for each in self._sockets:
            each.setblocking(False)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._drip, daemon=True)
        self.rounds = 0
        """How often each of them has sent a byte."""
        self.closed: set[int] = set()
        """Those that the server has closed."""

    def __enter__(self) -> Self:
        """Send the beginning of a request, and begin to drip."""
        for each in self._sockets:
            each.send(b"GET /")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        self._ending.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _drip(self) -> None:
        while not self._ending.wait(EVERY_S):
            for number, each in enumerate(self._sockets):
                if number not in self.closed and not self._sends(each):
                    self.closed.add(number)
            self.rounds += 1

    @staticmethod
    def _sends(client: socket.socket) -> bool:
        """Send one byte; return whether the connection is open."""
        try:
            client.send(b"a")
            return bool(client.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False
