"""Lets requests in or refuses them, reads forms, and sets the headers of each response."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbox_relay.console import rendering
from outbox_relay.console.access import Access, RefusedError, Visitor

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Whatever a key, a remark or an error holds, a browser runs nothing of it and loads nothing for it."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LARGEST_FORM = 64 * 1024


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        RefusedError: it is something else, or too large.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise RefusedError(415, "expected a form")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            raise RefusedError(413, f"a form has at most {LARGEST_FORM} bytes")
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise RefusedError(400, "the form is not UTF-8") from None


class Guard:
    """Lets requests in: the host's name, then who it is; sets the headers of each response, and the cookie."""

    def __init__(
        self,
        inner: ASGIApp,
        access: Access,
        cookie: str,
        failed: Callable[[Request, Exception], Response],
    ) -> None:
        self._inner, self._access, self._cookie, self._failed = inner, access, cookie, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        begun = False

        async def leave(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*self._headers(scope, message["headers"])]
            await send(message)

        try:
            response = self._let_in(request)
            await (self._inner if response is None else response)(scope, receive, leave)
        except Exception as error:
            if begun:
                raise
            await self._failed(request, error)(scope, receive, leave)

    def _let_in(self, request: Request) -> Response | None:
        """Return who is refused their response; None: the request goes on."""
        self._access.require_host(request.headers.get("host", ""))
        name = request.url.path.removeprefix("/static/")
        if request.url.path.startswith("/static/"):
            if name not in rendering.STATIC:
                raise RefusedError(404, "there is no such file")
            kept = {"cache-control": "private, max-age=86400"}
            return Response(rendering.static(name), media_type=rendering.STATIC[name], headers=kept)
        peer = request.client.host if request.client else ""
        visitor = self._access.visitor(peer, request.headers, request.cookies.get(self._cookie))
        if visitor is not None:
            request.scope["visitor"] = visitor
        elif request.url.path != "/login":
            if request.method != "GET" or request.url.path.startswith("/live/"):
                raise RefusedError(401, "the session has ended: load the page again, and log in")
            to = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""), safe="")
            return RedirectResponse(f"/login?to={to}", 303)
        return None

    def _headers(self, scope: Scope, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name.lower() for name, _ in given}
        found = [
            *given,
            *((name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in names),
        ]
        visitor: Visitor | None = scope.get("visitor")
        if visitor is not None and visitor.is_new:
            # A proxy that ends TLS states it; whoever else does, harms themselves only.
            is_secure = Request(scope).headers.get("x-forwarded-proto", scope["scheme"]) == "https"
            secure = "; Secure" if is_secure else ""
            cookie = f"{self._cookie}={visitor.cookie}; Path=/; HttpOnly; SameSite=Strict{secure}"
            found.append((b"set-cookie", cookie.encode()))
        return found
