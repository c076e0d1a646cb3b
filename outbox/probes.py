"""An HTTP server of few small pages: probes of Kubernetes, and metrics.

It serves few requests at a time, each for a few seconds at most, so that a client that connects and sends nothing, or
many of them, take nothing from the process but these threads. Its own error ends the request, never the process.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

log = logging.getLogger("outbox.http")

TIMEOUT_S = 5.0
"""How long a client may take to send its request, or to take the reply."""
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
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], pages: Mapping[str, MakePage]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
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

    Raises from `with`:
        OSError, UnicodeError: the address is taken, or not of this machine.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, MakePage]) -> None:
        self._address = host, port
        self._pages = pages
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """Where it listens; the number that the system chose if 0 was asked for."""
        assert self._server is not None  # noqa: S101  (within the block)
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._server = _Server(self._address, self._pages)
        threading.Thread(target=self._server.serve_forever, name="outbox-http", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
