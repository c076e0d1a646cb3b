"""What alarms are sent to in tests: a real HTTP server that checks signatures, and holds its replies when told to."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

from outbox.callbacks.signing import Secrets, SignatureError, SignedHead
from outbox_relay.alarms.delivery import Webhook
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.registered import trust
from outbox_relay.checker.callback import read_callback
from tests.support.callback_peer import SECRET, Line, Peer, Question
from tests.support.waiting import wait_until

PATH = "/alarms"


class Receiver:
    """Takes alarms; `status` is what it replies with, 401 where the signature does not fit.

    Requests wait for their reply while `replies` is not set.
    """

    def __init__(self) -> None:
        self.status = 204
        self.taken: list[Question] = []
        self.refused: list[Question] = []
        self.replies = threading.Event()
        self.replies.set()
        self._lock = threading.Lock()
        self.peer = Peer(self._serve)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.peer.url(PATH)

    def _serve(self, line: Line) -> None:
        while (question := line.read()) is not None:
            status = self.status if _is_signed(question) else 401
            with self._lock:
                (self.taken if status < 300 else self.refused).append(question)
            self.replies.wait(60)
            line.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """What was taken of a kind, in order."""
        return [question.json for question in list(self.taken) if question.json["kind"] == kind]

    def events(self, kind: str) -> list[str]:
        """The events that were taken of a kind, in order."""
        return [each["event"] for each in self.of(kind)]

    def wait(self, kind: str, events: list[str]) -> None:
        """Wait until these events, and no others, were taken of a kind."""

        def taken() -> bool:
            seen = self.events(kind)
            assert seen == events[: len(seen)], f"{kind}: {seen}, expected {events}"
            return seen == events

        wait_until(taken, f"{kind}: {events}")

    def webhook(self, secret: str = SECRET) -> Webhook:
        """Itself, as a relay is configured for it."""
        callback = read_callback({"kind": "http", "url": self.url})
        assert isinstance(callback, HttpCallback)
        return Webhook(
            callback, Secrets(secret), AllowList.read((callback.place,), ("127.0.0.0/8",)), trust()
        )

    def __enter__(self) -> Self:
        self.peer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.replies.set()
        self.peer.__exit__(kind, error, trace)


def _is_signed(question: Question) -> bool:
    head = SignedHead(
        question.method,
        question.target,
        "",
        question.headers["outbox-timestamp"],
        question.headers["outbox-request-id"],
    )
    try:
        Secrets(SECRET).verify_request(head, question.body, question.signature, now=time.time())
    except SignatureError:
        return False
    return True
