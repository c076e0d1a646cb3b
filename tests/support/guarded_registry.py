"""Servers that a client of a schema registry may meet: one behind TLS and a password, and ones that reply nonsense."""

from __future__ import annotations

import base64
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import trustme

from outbox_local.stack.ports import LOOPBACK

USER, PASSWORD = "points", "secret:Pa55"


class Reply(NamedTuple):
    """A reply of a server."""

    status: int
    body: bytes = b"{}"
    kind: str = "application/json"


Respond = Callable[[str, str, bytes | None, str | None], Reply]
"""Gets method, path, body and the header Authorization."""


@contextmanager
def serving(respond: Respond, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve until the end of the block; yields host and port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            reply = respond(self.command, self.path, body, self.headers.get("Authorization"))
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = _reply

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def guarded(url: str, place: Path) -> Iterator[tuple[str, Path]]:
    """Serve a registry by TLS to those who bring the password; yields its address and the certificate to trust."""
    authority = trustme.CA()
    trusted = place / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def respond(method: str, path: str, body: bytes | None, login: str | None) -> Reply:
        if login != expected:
            return Reply(401, b'{"error_code": 40101, "message": "Unauthorized"}')
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{url}{path}", body, kind, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return Reply(reply.status, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read())

    with serving(respond, context) as place_of:
        yield f"https://{place_of}", trusted
