"""The HTTP server behind `--http`: `/livez`, `/readyz` and `/metrics`.

It serves few requests at a time, each for a few seconds at most, so that a client that connects and sends nothing, or
many of them, take nothing from the relay but these threads. Its own error ends the request, never the process.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outbox_relay.monitoring.catalogue import Families
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("http")

TIMEOUT_S = 5.0
"""How long a client may take to send its request, or to take the reply."""
AT_A_TIME = 16
PATHS = ("/livez", "/readyz", "/metrics")


class ProbeCheck(NamedTuple):
    """One thing that `/livez` or `/readyz` asks about; `detail` is for people and holds no secret."""

    name: str
    ok: bool
    detail: str


class AddressError(OperatorError):
    """The server cannot listen at the address of `--http`."""


class Monitoring(Collector):
    """What a process offers to a monitoring system."""

    def __init__(self) -> None:
        self.live: list[Callable[[], Iterable[ProbeCheck]]] = []
        self.ready: list[Callable[[], Iterable[ProbeCheck]]] = []
        self.metrics: list[Callable[[Families], None]] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: metrics are not read when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return what the process noted."""
        families = Families()
        for add in self.metrics:
            add(families)
        return families.made()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], monitoring: Monitoring) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.monitoring = monitoring
        self._free = threading.BoundedSemaphore(AT_A_TIME)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # too many at a time: the client tries again
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request failed", client=str(client_address[0]))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "outbox", ""
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """Reply with the page of the path."""
        monitoring = self.server.monitoring
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept") or "")
                status, body = HTTPStatus.OK, encode(monitoring.registry)
            elif path in PATHS:
                asked = monitoring.live if path == "/livez" else monitoring.ready
                status, body = _page([check for ask in asked for check in ask()])
                kind = "application/json"
            else:
                status, kind = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8"
                body = f"not here; expected one of {', '.join(PATHS)}\n".encode()
        except Exception as error:  # noqa: BLE001  (a defect of a page must not end the process)
            log.error("a page could not be made", path=path, exception=error)
            status, kind, body = (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "text/plain; charset=utf-8",
                b"see the log\n",
            )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: probes come every few seconds."""


class MonitoringServer:
    """Serves between `with` and the end of its block.

    Raises from `with`:
        AddressError: the address is taken, or not of this machine.
    """

    def __init__(self, host: str, port: int, monitoring: Monitoring) -> None:
        self._address = host, port
        self._monitoring = monitoring
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """Where it listens; the number that the system chose if 0 was asked for."""
        assert self._server is not None  # noqa: S101  (within the block)
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        host, port = self._address
        try:
            self._server = _Server((host, port), self._monitoring)
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise AddressError(
                f"--http: cannot listen at {host} port {port}: {reason}\n"
                "Give another port, or an address of this machine; 0 lets the system choose a port."
            ) from None
        thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        thread.start()
        log.info("serving", host=host, port=self.port, paths=" ".join(PATHS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _page(checks: Sequence[ProbeCheck]) -> tuple[HTTPStatus, bytes]:
    ok = all(check.ok for check in checks)
    page = {"ok": ok, "checks": [check._asdict() for check in checks]}
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return status, json.dumps(page, indent=2).encode() + b"\n"
