"""The receiving end of callbacks: an ASGI application that asks the listeners of the application it is mounted in.

    listeners = Listeners()
    listeners.register(PaymentListener(), checker="payment")
    app.mount("/outbox", CallbackReceiver(listeners, os.environ["OUTBOX_CALLBACK_SECRET"]))     # FastAPI, Starlette

It imports no framework, and also runs by itself under any ASGI server that uses asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from outbox.callbacks import protocol
from outbox.callbacks.protocol import ProtocolError
from outbox.callbacks.signing import (
    REQUEST_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Secrets,
    SignatureError,
    SignedHead,
)
from outbox.checking.answers import Answer, answer_of, answer_of_error
from outbox.checking.listeners import Listeners, check_of
from outbox.records import MessageView

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST_REQUEST = 8 * 1024 * 1024
THREADS = 16

log = logging.getLogger("outbox.callbacks")


class _RefusedError(Exception):
    """A request that gets an unsigned reply: who sent it did not prove that it knows the secret."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CallbackReceiver:
    """Replies to a checker's questions: verifies the signature, calls the listener, signs the reply.

    Synchronous listeners run in threads of this receiver's own, asynchronous ones on the server's event loop. What a
    listener raises, or returns other than COMMIT and ROLLBACK, is UNKNOWN. A listener should answer within the group's
    `check_timeout` (3 s): the checker does not wait longer, though the listener is left to finish.

    A question changes nothing, so one that is sent again (within 300 s, by somebody who overheard it) does no harm;
    its reply is bound to the first question and of no use to anybody. Use https all the same: questions carry bodies.

    Args:
        listeners: whom to ask.
        secrets: the shared secret or secrets, as text (see `Secrets.from_text`) or as `Secrets`.
        path: the path of the callback URL as the checker calls it; only needed when a reverse proxy in front
            rewrites paths, because the path is signed.
        max_request_bytes: larger requests are refused; a message of n bytes makes a request of about 4/3 n.
        threads: how many synchronous listeners run at once; further questions wait for one to end.

    Raises:
        ConfigurationError: the secret is missing or too short.
    """

    def __init__(
        self,
        listeners: Listeners,
        secrets: Secrets | str,
        *,
        path: str | None = None,
        max_request_bytes: int = LARGEST_REQUEST,
        threads: int = THREADS,
    ) -> None:
        self._listeners = listeners
        self._secrets = Secrets.from_text(secrets) if isinstance(secrets, str) else secrets
        self._path = path
        self._max_request_bytes = max_request_bytes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="outbox-callback")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            try:
                status, body, signature = await self._serve(scope, receive)
            except _RefusedError as refused:
                log.warning("callback refused with %d: %s", refused.status, refused)
                status, body, signature = refused.status, str(refused).encode(), None
            await _reply(send, status, body, signature)

    async def _serve(self, scope: Scope, receive: Receive) -> tuple[int, bytes, str]:
        if scope["method"] != "POST":
            raise _RefusedError(405, "the method must be POST")
        headers = {name.lower(): value for name, value in scope["headers"]}
        body = await self._read(headers, receive)
        signature = _header(headers, SIGNATURE_HEADER)
        head = SignedHead(
            scope["method"],
            self._path if self._path is not None else _full_path(scope),
            scope.get("query_string", b"").decode("latin-1"),
            _header(headers, TIMESTAMP_HEADER),
            _header(headers, REQUEST_ID_HEADER),
        )
        try:
            self._secrets.verify_request(head, body, signature, now=time.time())
        except SignatureError as error:
            raise _RefusedError(401, str(error)) from error
        status, reply = await self._answer(body)
        return status, reply, self._secrets.sign_reply(signature, status, reply)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read the body, but never more of it than is allowed."""
        announced = headers.get(b"content-length", b"0")
        limit = self._max_request_bytes
        if announced.isdigit() and int(announced) > limit:
            raise _RefusedError(413, f"the request is larger than {limit} bytes")
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _RefusedError(400, "the request ended early")
            body += event.get("body", b"")
            if len(body) > limit:
                raise _RefusedError(413, f"the request is larger than {limit} bytes")
            if not event.get("more_body", False):
                return bytes(body)

    async def _answer(self, body: bytes) -> tuple[int, bytes]:
        try:
            view = protocol.view_of(body)
        except ProtocolError as error:
            return protocol.OK, protocol.reply_body(answer_of_error("receiver", error))
        try:
            listener = self._listeners.find(view)
        except Exception as error:  # noqa: BLE001  (an ambiguous registry: the answer says which names clash)
            return protocol.OK, protocol.reply_body(answer_of_error("listeners", error))
        if listener is None:
            return protocol.NO_CHECKER_STATUS, protocol.no_checker_body(self._listeners.explain_missing(view))
        return protocol.OK, protocol.reply_body(await self._ask(listener, view))

    async def _ask(self, listener: Any, view: MessageView) -> Answer:
        check = check_of(listener)
        assert check is not None  # noqa: S101  (only what can be called is registered)
        try:
            if inspect.iscoroutinefunction(check):
                return answer_of(await check(view))
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, copy_context().run, check, view)
            # A plain callable may wrap a coroutine function; the coroutine belongs on the loop.
            return answer_of(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001  (whatever a listener raises is UNKNOWN, never a verdict)
            return answer_of_error("checkLocalTransactionState", error)


def _full_path(scope: Scope) -> str:
    """The path as it was called, also below a mount; older servers and routers cut `root_path` off."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    return path if not root or path == root or path.startswith(f"{root}/") else root + path


def _header(headers: dict[bytes, bytes], name: str) -> str:
    return headers.get(name.encode(), b"").decode("latin-1")


async def _reply(send: Send, status: int, body: bytes, signature: str | None) -> None:
    content_type = protocol.CONTENT_TYPE if signature else "text/plain; charset=utf-8"
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if signature:
        headers.append((SIGNATURE_HEADER.encode(), signature.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Take part in the server's start and stop when nothing is mounted around the receiver."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
