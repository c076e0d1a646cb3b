"""Free ports without a race: a reserved port stays ours while its server is down."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


class Reservation:
    """A loopback port held by a bound socket that never listens.

    The server binds over it, because both sides set SO_REUSEADDR and only one listens. Everybody else is kept
    off: the kernel does not hand out a bound port, and a connection to it is refused while the server is
    down. So a server killed in a test comes back on its own port, whatever else runs on the machine.
    """

    def __init__(self, wanted: int = 0) -> None:
        """Reserve the requested port if it is free, else (and for 0) any."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOOPBACK, wanted))
        except OSError:
            self._socket.bind((LOOPBACK, 0))
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()


def taken(port: int) -> bool:
    """Return whether another process has the loopback port, so that no server of ours could bind it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
        return False


def listens(port: int) -> bool:
    """Return whether a server accepts connections on the loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        return probe.connect_ex((LOOPBACK, port)) == 0
