"""The web application: each request is let in or refused, read or acted upon, and leaves with the same headers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from outbox_relay.console import rendering
from outbox_relay.console.access import Access, RefusedError, Visitor
from outbox_relay.console.acts.act import Params, ParamsError
from outbox_relay.console.acts.registry import ACTS
from outbox_relay.console.guard import Guard, read_form
from outbox_relay.console.live import LivePage, Update
from outbox_relay.console.pages import NotFoundError, Pages, PageValues
from outbox_relay.console.reader import LacksRightError, Reader, explained
from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.operations.decide import checked_reason
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("console")

TITLES = {
    "now": "Now",
    "failing": "Failing",
    "messages": "Messages",
    "topics": "Topics",
    "half-messages": "Half messages",
    "groups": "Groups",
    "warehouse": "Warehouse",
}
"""The pages, in their order."""
LIVE = {"now": 1.7, "failing": 5.0, "topics": 5.0, "half-messages": 5.0, "groups": 5.0}
"""Seconds between two reads of a page that somebody has open; with the read itself, *Now* is 2 s old at most."""
Read = Callable[[Mapping[str, str]], PageValues]


@dataclass(frozen=True)
class ConsoleOptions:
    """How the console is used."""

    is_read_only: bool = False
    cookie: str = "outbox-console"
    """The cookie's name: a browser gives the cookies of all ports of a host to each."""


class Console:
    """The application of one database; call `application` for the part that a server runs."""

    def __init__(self, reader: Reader, pages: Pages, access: Access, options: ConsoleOptions) -> None:
        self._reader, self._pages, self._access, self._options = reader, pages, access, options
        self._reads: dict[str, Read] = {
            "now": pages.now,
            "failing": pages.failing,
            "messages": pages.messages,
            "topics": pages.topics,
            "half-messages": pages.half_messages,
            "groups": pages.groups,
            "warehouse": pages.warehouse,
            "letters": pages.letters,
        }
        self._live = {name: LivePage(self._updating(name), every) for name, every in LIVE.items()}

    @property
    def is_reading(self) -> bool:
        """Whether a page is open, so that the database is read."""
        return any(page.is_read for page in self._live.values())

    def end(self) -> None:
        """Disconnect the pages that are open; they connect again to the next console at this address."""
        for page in self._live.values():
            page.end()

    def application(self) -> ASGIApp:
        """Return the whole of it, guarded."""
        routes = [
            Route("/", self._page("now")),
            *(Route(f"/{name}", self._page(name)) for name in self._reads if name != "now"),
            Route("/messages/{id:int}", self._message),
            Route("/messages/{id:int}", self._content, methods=["POST"]),
            Route("/acts/{act}", self._form),
            Route("/acts/{act}", self._act, methods=["POST"]),
            Route("/live/{page}", self._stream),
            Route("/login", self._login, methods=["GET", "POST"]),
        ]
        return Guard(Router(routes, default=_not_found), self._access, self._options.cookie, self._failed)

    # Pages

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            query = dict(request.query_params)
            values = await run_in_threadpool(self._reads[name], query)
            if "only" in values:
                return RedirectResponse(f"/messages/{values['only']}", 303)
            content = self._rendered(f"{name}.html", **values)
            live = f"/live/{name}" if name in LIVE and not query else None
            return self._framed(request, content, TITLES.get(name, "Dead letters"), page=name, live=live)

        return page

    def _content_of(self, name: str, query: Mapping[str, str]) -> Markup:
        values = self._reads[name](query)
        return self._rendered(f"{name}.html", **values)

    def _updating(self, name: str) -> Callable[[], Update]:
        def update() -> Update:
            try:
                return Update("content", self._content_of(name, {}))
            except Exception as error:  # noqa: BLE001  (it is shown, and what reads goes on)
                text = explained(error)
                if text is None:
                    log.error("page was not read", page=name, exception=error)
                    text = f"the console has a defect: {type(error).__name__}, see its log"
                return Update("away", text.partition("\n")[0])

        return update

    async def _stream(self, request: Request) -> Response:
        live = self._live.get(request.path_params["page"])
        if live is None:
            raise RefusedError(404, "no page of this name is live")
        visitor: Visitor = request.scope["visitor"]

        async def events() -> AsyncIterator[bytes]:
            yield b"retry: 2000\n\n"
            async for update in live.updates():
                if self._access.has_ended(visitor):
                    yield b"event: ended\ndata:\n\n"
                    return
                lines = update.text.splitlines() or [""]
                data = "".join(f"data: {line}\n" for line in lines)
                yield f"event: {update.kind}\n{data}\n".encode()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _message(self, request: Request) -> Response:
        return await self._life(request, content=False)

    async def _content(self, request: Request) -> Response:
        """Show headers and body: asked for by a form, so that no link leads to them; who saw them is logged."""
        visitor, _ = await self._own_form(request)
        log.info("body shown", by=visitor.name, message=request.path_params["id"])
        return await self._life(request, content=True)

    async def _life(self, request: Request, *, content: bool) -> Response:
        id_ = request.path_params["id"]

        def read() -> Markup:
            values = self._pages.message(id_, content=content)
            return self._rendered("message.html", **values, csrf=request.scope["visitor"].csrf)

        life = await run_in_threadpool(read)
        return self._framed(request, life, f"Message {id_}", page="messages", heading=False)

    # Acts

    async def _form(self, request: Request) -> Response:
        act = ACTS.get(request.path_params["act"])
        if act is None:
            raise RefusedError(404, "there is no such act")
        params = act.chosen(request.query_params)

        def read() -> Markup:
            if self._options.is_read_only:
                raise RefusedError(403, "the console runs with --read-only")
            with self._reader.reading() as conn:
                told = act.tell(conn, params)
            fields = {**params, **told.fields}
            return self._acting(request, fields, "", told=told)

        return self._framed(request, await run_in_threadpool(read), act.title, page="act")

    def _acting(self, request: Request, fields: Params, reason: str, **values: Any) -> Markup:
        act = ACTS[request.path_params["act"]]
        return self._rendered(
            "act.html",
            act=act,
            fields=fields,
            reason=reason,
            line=act.command(fields, reason or "TEXT"),
            csrf=request.scope["visitor"].csrf,
            **{"told": None, "outcome": None, "error": None, **values},
        )

    async def _act(self, request: Request) -> Response:
        visitor, form = await self._own_form(request)
        act = ACTS.get(request.path_params["act"])
        if act is None:
            raise RefusedError(404, "there is no such act")
        if self._options.is_read_only:
            raise RefusedError(403, "the console runs with --read-only")
        params, name = act.chosen(form), request.path_params["act"]

        def run() -> tuple[int, Markup]:
            given = form.get("reason", "")
            try:
                reason = checked_reason(given)
                with self._reader.acting(f"{visitor.name} (console)") as conn:
                    outcome = act.run(conn, params, reason)
            except (OperatorError, psycopg.Error) as error:
                log.warning("act refused", act=name, by=visitor.name, error=str(error), **params)
                lacks_right = isinstance(error, LacksRightError)
                return 403 if lacks_right else 409, self._acting(
                    request, params, given, error=explained(error)
                )
            line = act.command(params, reason)
            log.info(
                "act",
                act=name,
                by=visitor.name,
                reason=reason,
                done=outcome.done,
                line=line,
                result=outcome.lines,
            )
            return 200 if outcome.done else 409, self._acting(request, params, reason, outcome=outcome)

        status, content = await run_in_threadpool(run)
        return self._framed(request, content, act.title, page="act", status=status)

    async def _own_form(self, request: Request) -> tuple[Visitor, dict[str, str]]:
        visitor: Visitor = request.scope["visitor"]
        form = await read_form(request)
        self._access.require_own_form(visitor, request.headers, form.get("csrf", ""))
        return visitor, form

    async def _login(self, request: Request) -> Response:
        goes_to = request.query_params.get("to", "/")
        if not self._access.needs_token or not goes_to.startswith("/") or goes_to.startswith(("//", "/\\")):
            goes_to = "/"
        if request.method == "GET":
            return self._entry(request, goes_to, None)
        self._access.require_own_origin(request.headers)
        form = await read_form(request)
        try:
            visitor = self._access.log_in(form.get("token", ""), form.get("name", ""))
        except RefusedError as error:
            log.warning("login refused", peer=request.client.host if request.client else "", error=error.text)
            return self._entry(request, goes_to, error)
        log.info("login", by=visitor.name)
        request.scope["visitor"] = visitor
        return RedirectResponse(goes_to, 303)

    def _entry(self, request: Request, goes_to: str, error: RefusedError | None) -> Response:
        text = None if error is None else error.text
        content = Markup(rendering.render("login.html", to=goes_to, error=text))  # noqa: S704
        return self._framed(request, content, "Log in", page="login", status=error.status if error else 200)

    # What they share

    def _rendered(self, template: str, **values: Any) -> Markup:
        login = self._reader.login
        return Markup(  # noqa: S704  (the templates escape)
            rendering.render(template, **values, may_act=login.may_act and not self._options.is_read_only)
        )

    def _framed(
        self,
        request: Request,
        content: Markup,
        title: str,
        *,
        page: str = "",
        live: str | None = None,
        heading: bool = True,
        status: int = 200,
    ) -> Response:
        text = rendering.render(
            "frame.html",
            content=content,
            title=title,
            page=page,
            live=live,
            heading=heading,
            away=status == 503,
            titles=TITLES,
            place=self._reader.place,
            visitor=request.scope.get("visitor"),
            login=self._reader.known_login,
            is_read_only=self._options.is_read_only,
        )
        return HTMLResponse(text, status)

    def _failed(self, request: Request, error: Exception) -> Response:
        """Return the page about an error; of a defect no more than its kind."""
        away = isinstance(error, DatabaseUnreachableError | psycopg.OperationalError)
        text = error.text if isinstance(error, RefusedError) else explained(error)
        if isinstance(error, RefusedError):
            status = error.status
        elif isinstance(error, NotFoundError):
            status = 404
        elif isinstance(error, ParamsError):
            status = 400
        elif isinstance(error, LacksRightError):
            status = 403
        elif away:
            status = 503
        else:
            status = 409 if text is not None else 500
        if text is None:
            log.error("request failed", path=request.url.path, exception=error)
            text = f"the console has a defect: {type(error).__name__}; its log has more"
        content = rendering.render("error.html", lines=text.splitlines(), away=away)
        name = request.url.path.strip("/") or "now"
        live = f"/live/{name}" if away and name in LIVE else None
        title = "PostgreSQL does not reply" if away else "Refused" if status < 500 else "Defect"
        return self._framed(request, Markup(content), title, page=name, live=live, status=status)  # noqa: S704


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise RefusedError(404, "there is no such page")
