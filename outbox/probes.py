"""An HTTP server of few small pages: probes of Kubernetes, and metrics.

It serves few requests at a time and closes each after a few seconds, whatever was received by then. When all places are
taken, a new client gets that of the oldest one. So clients that send nothing, or a byte now and then, take these
threads from the process and nothing else, and a probe gets its reply. An error of a page ends the request, never the
process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

log = logging.getLogger("outbox.http")

TIMEOUT_S = 5.0
"""How long a request may take, from its connection to the end of the reply."""
LOOK_EVERY_S = 0.25
"""Seconds between checks for requests that took longer."""
AT_A_TIME = 16
TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """A reply."""

    status: HTTPStatus
    kind: str
    """Its content type."""
    body: bytes


MakePage = Callable[[str], Page]
"""Makes a page; called with the header `Accept` of the request."""


class ProbeCheck(NamedTuple):
    """One thing that `/livez` or `/readyz` asks about; `detail` is for people and holds no secret."""

    name: str
    ok: bool
    detail: str


def probe(ask: Callable[[], Iterable[ProbeCheck]]) -> MakePage:
    """Make a page of checks: 200 if all of them are well, else 503."""

    def page(_: str) -> Page:
        checks = list(ask())
        ok = all(check.ok for check in checks)
        shown = {"ok": ok, "checks": [check._asdict() for check in checks]}
        status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(status, "application/json", json.dumps(shown, indent=2).encode() + b"\n")

    return page


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], pages: Mapping[str, MakePage]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
        self._began: dict[socket.socket, float] = {}
        """When each open connection was accepted, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._began) >= AT_A_TIME:
                self._close_oldest()
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        with self._lock:
            while self._began and time.monotonic() - next(iter(self._began.values())) > TIMEOUT_S:
                self._close_oldest()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def _close_oldest(self) -> None:
        """End the oldest request: its thread reads an end of the stream, or cannot write, and ends."""
        oldest = next(iter(self._began))
        del self._began[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address[0])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "outbox", ""
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """Reply with the page of the path."""
        path, pages = self.path.partition("?")[0], self.server.pages
        if path in pages:
            try:
                page = pages[path](self.headers.get("Accept") or "")
            except Exception:
                log.exception("the page %s could not be made", path)
                page = Page(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"see the log\n")
        else:
            page = Page(
                HTTPStatus.NOT_FOUND, TEXT, f"not here; expected one of {', '.join(pages)}\n".encode()
            )
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: probes come every few seconds."""


class ProbeServer:
    """Serves pages by their paths between `with` and the end of its block.

    Args:
        host: an address of this machine.
        port: 0: the system chooses one.
        pages: by their paths.
        livez: host and port of a second listener, which serves `/livez` of these pages and nothing else. It has places
            of its own, so a client that reaches the other pages only cannot keep an orchestrator from its reply.

    Raises from `with`:
        OSError, UnicodeError: an address is taken, or not of this machine.
    """

    def __init__(
        self, host: str, port: int, pages: Mapping[str, MakePage], *, livez: tuple[str, int] | None = None
    ) -> None:
        self._address, self._livez = (host, port), livez
        self._pages = pages
        self._servers: list[_Server] = []

    @property
    def port(self) -> int:
        """Where it listens; the number that the system chose if 0 was asked for."""
        return int(self._servers[0].server_address[1])

    @property
    def livez_port(self) -> int:
        """The same for the second listener, which must have been asked for."""
        return int(self._servers[1].server_address[1])

    def __enter__(self) -> Self:
        try:
            self._listen(self._address, self._pages)
            if self._livez is not None:
                self._listen(self._livez, {"/livez": self._pages["/livez"]})
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _listen(self, address: tuple[str, int], pages: Mapping[str, MakePage]) -> None:
        server = _Server(address, pages)
        self._servers.append(server)
        serve = server.serve_forever
        threading.Thread(target=serve, args=(LOOK_EVERY_S,), name="outbox-http", daemon=True).start()

    def _close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()
