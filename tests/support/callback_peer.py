"""A peer for callbacks: a real TCP server of which a test says what each connection gets."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from outbox.callbacks import Secrets
from outbox.records import MessageView

SECRET = "0123456789abcdef-of-a-test"


def a_view(**fields: Any) -> MessageView:
    """A half message as a checker reads it."""
    given: dict[str, Any] = {
        "id": 7,
        "message_id": UUID("00000000-0007-8000-8000-000000000001"),
        "topic": "payments",
        "producer_group": "shop",
        "born_at": datetime(2026, 11, 21, tzinfo=UTC),
        "key": b"p-7",
        "body": '{"amount": 5, "商品": "书"}'.encode(),
        "biz_id": "p-7",
        "tags": ("创建订单", "支付"),
    }
    return MessageView(**{**given, **fields})


@dataclass(slots=True)
class Question:
    """One request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def signature(self) -> str:
        return self.headers["outbox-signature"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """One connection: reads questions, writes whatever the test likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def read(self) -> Question | None:
        """The next question, or None at the end of the connection."""
        first = self._file.readline()
        if not first:
            return None
        method, target, _ = first.decode().split(" ", 2)
        headers = {}
        while (line := self._file.readline().decode().rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Question(method, target, headers, self._file.read(int(headers["content-length"])))

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def close(self) -> None:
        self._file.close()
        self.sock.close()


def reply(
    question: Question,
    body: bytes = b'{"state": "COMMIT"}',
    *,
    status: int = 200,
    secret: str = SECRET,
    signature: str | None = None,
    more: str = "",
) -> bytes:
    """A reply with a fitting signature, unless told otherwise."""
    signed = Secrets(secret).sign_reply(question.signature, status, body) if signature is None else signature
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nOutbox-Signature: {signed}\r\n"
        f"Content-Length: {len(body)}\r\n{more}\r\n"
    ).encode() + body


def answering(**settings: Any) -> Callable[[Line], None]:
    """Answer every question of a connection the same way, properly."""

    def serve(line: Line) -> None:
        while (question := line.read()) is not None:
            line.write(reply(question, **settings))

    return serve


class Peer:
    """Listens on a free port of the loopback; `serve` is run for each connection, in a thread of its own."""

    def __init__(self, serve: Callable[[Line], None], tls: ssl.SSLContext | None = None) -> None:
        self.serve, self._tls = serve, tls
        self.connections = 0
        self.stopping = threading.Event()
        """What a behaviour waits for when it wants to hang."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._lines: list[Line] = []

    def url(self, path: str = "/outbox", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            line = Line(sock)
            self._lines.append(line)
            with contextlib.closing(line):
                self.serve(line)
        sock.close()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        # Waking accept() needs a shutdown; closing alone leaves it waiting.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for line in list(self._lines):
            with contextlib.suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
