"""The receiving end inside FastAPI and Starlette under a real server, asked by the checker's own asker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from outbox.callbacks import CallbackReceiver, Secrets
from outbox.checking import Answer, FailedAnswer, Listeners, LocalTransactionState, NoCheckerError
from outbox.records import MessageView
from tests.support.callback_asking import make_asker
from tests.support.callback_peer import SECRET, a_view
from tests.support.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
NO_STATE = "answer is not a state: expected COMMIT, ROLLBACK or UNKNOWN, got"

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


class PaymentListener:
    """Says what was paid, in RocketMQ 4.x's words; notes what it was asked and where."""

    def __init__(self) -> None:
        self.asked: list[MessageView] = []
        self.threads: set[str] = set()

    def check_local_transaction(self, view: MessageView) -> Any:
        self.asked.append(view)
        self.threads.add(threading.current_thread().name)
        return {"paid": True, "failed": False, "lost": None, "odd": 7}[view.biz_id or ""]


class AsyncChecker:
    """RocketMQ 5.x's words, asynchronous."""

    async def check(self, view: MessageView) -> LocalTransactionState:
        await asyncio.sleep(0)
        return ROLLBACK


def raising(view: MessageView) -> bool:
    raise ConnectionError("the ledger is away")


@contextmanager
def serving(app: App, **settings: Any) -> Iterator[str]:
    """Run a real ASGI server in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="error", **settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server is up")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def payments() -> PaymentListener:
    return PaymentListener()


@pytest.fixture
def listeners(payments: PaymentListener) -> Listeners:
    registry = Listeners()
    registry.register(payments, checker="payment")
    registry.register(AsyncChecker(), checker="async")
    registry.register(raising, checker="raising")
    return registry


@pytest.fixture(params=["fastapi", "starlette", "alone"])
def url(request: pytest.FixtureRequest, listeners: Listeners) -> Iterator[str]:
    """The callback URL of a receiver that is mounted, or runs by itself."""
    receiver: App = CallbackReceiver(listeners, SECRET)
    if request.param == "fastapi":
        app: App = FastAPI()
        app.mount("/in/outbox", receiver)  # type: ignore[attr-defined]  # App hides what FastAPI has
    elif request.param == "starlette":
        app = Starlette(routes=[Mount("/in/outbox", app=receiver)])
    else:
        app = receiver
    with serving(app) as address:
        yield f"{address}/in/outbox/"


def ask(url: str, secret: str = SECRET, **fields: Any) -> Answer:
    asker = make_asker(url, secret=secret)
    try:
        return asker.ask(a_view(**fields), time.monotonic() + 10)
    finally:
        asker.close()


@pytest.mark.feature("S-44", "S-68", "S-71")
@pytest.mark.parametrize(
    ("checker", "biz_id", "answer"),
    [
        ("payment", "paid", Answer(COMMIT)),
        ("payment", "failed", Answer(ROLLBACK)),
        ("payment", "lost", Answer(UNKNOWN, "answer is None")),
        ("payment", "odd", Answer(UNKNOWN, f"{NO_STATE} an object of int")),
        ("async", "paid", Answer(ROLLBACK)),
        (
            "raising",
            "paid",
            Answer(UNKNOWN, "checkLocalTransactionState exception: ConnectionError: the ledger is away"),
        ),
    ],
)
def test_the_listeners_answer_is_the_answer(url: str, checker: str, biz_id: str, answer: Answer) -> None:
    found = ask(f"{url}?a=%2Fb", checker=checker, biz_id=biz_id)
    assert found == answer
    failed = checker == "raising" or biz_id == "odd"
    assert isinstance(found, FailedAnswer) is failed, "what failed there has failed here"


def test_the_listener_sees_the_message_as_the_checker_read_it(url: str, payments: PaymentListener) -> None:
    ask(f"{url}%E6%94%AF%E4%BB%98/a%20b", checker="payment", biz_id="paid")
    assert payments.asked == [a_view(checker="payment", biz_id="paid")]
    assert all(name.startswith("outbox-callback") for name in payments.threads)


@pytest.mark.feature("S-49")
@pytest.mark.parametrize("fields", [{"checker": "nobody"}, {"checker": None}])
def test_no_checker_registered_is_no_answer(url: str, fields: dict[str, Any]) -> None:
    with pytest.raises(NoCheckerError, match="no listener is registered"):
        ask(url, **fields)


def test_who_does_not_know_the_secret_is_refused(url: str, payments: PaymentListener) -> None:
    answer = ask(url, "another-secret-of-a-test", checker="payment", biz_id="paid")
    assert answer.state is UNKNOWN
    assert "status 401" in (answer.remark or "")
    assert not payments.asked


def test_requests_of_a_retired_secret_are_answered_while_both_are_known(listeners: Listeners) -> None:
    with serving(CallbackReceiver(listeners, Secrets("the-new-secret-of-a-test", SECRET))) as address:
        # The reply is signed with the new one, which the checker has to know by then.
        both = f"{SECRET},the-new-secret-of-a-test"
        asker = make_asker(address)
        asker._secrets = Secrets.from_text(both)
        assert asker.ask(a_view(checker="payment", biz_id="paid"), time.monotonic() + 10) == Answer(COMMIT)
        asker.close()


def test_a_rewritten_path_is_told_to_the_receiver(listeners: Listeners) -> None:
    """As behind a reverse proxy that strips a prefix: signed is what the checker calls."""
    with serving(CallbackReceiver(listeners, SECRET, path="/public/outbox")) as address:

        async def proxied(scope: Any, receive: Any, send: Any) -> None:
            await CallbackReceiver(listeners, SECRET, path="/public/outbox")(
                {**scope, "path": "/internal"}, receive, send
            )

        assert ask(f"{address}/public/outbox", checker="payment", biz_id="paid") == Answer(COMMIT)
        assert ask(f"{address}/elsewhere", checker="payment", biz_id="paid").state is UNKNOWN
    with serving(proxied) as address:
        assert ask(f"{address}/public/outbox", checker="payment", biz_id="paid") == Answer(COMMIT)


def test_an_ambiguous_registry_is_told_and_decides_nothing(listeners: Listeners) -> None:
    listeners.register(lambda view: True, topic="payments", tag="支付")
    listeners.register(lambda view: True, topic="payments", tag="创建订单")
    with serving(CallbackReceiver(listeners, SECRET)) as address:
        answer = ask(address)
    assert answer.state is UNKNOWN
    assert "支付" in (answer.remark or "")
    assert "创建订单" in (answer.remark or "")


def test_questions_are_answered_at_once_and_a_slow_listener_delays_no_other(listeners: Listeners) -> None:
    gate = threading.Event()
    listeners.register(lambda view: gate.wait(30), checker="slow")
    with serving(CallbackReceiver(listeners, SECRET, threads=2)) as address:
        slow = threading.Thread(target=ask, args=(address,), kwargs={"checker": "slow"})
        slow.start()
        try:
            assert ask(address, checker="payment", biz_id="paid") == Answer(COMMIT)
            assert ask(address, checker="async") == Answer(ROLLBACK)
        finally:
            gate.set()
            slow.join(20)


def test_context_variables_reach_synchronous_listeners(listeners: Listeners) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="")
    listeners.register(lambda view: tenant.get() == "eu", checker="tenant")
    receiver = CallbackReceiver(listeners, SECRET)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        tenant.set("eu")
        await receiver(scope, receive, send)

    with serving(app) as address:
        assert ask(address, checker="tenant") == Answer(COMMIT)


def drive(app: App, scope: dict[str, Any], *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Play an ASGI server by hand, for what no proper client sends."""
    sent: list[dict[str, Any]] = []
    coming = iter(events)

    async def receive() -> dict[str, Any]:
        return next(coming)

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    asyncio.run(app(scope, receive, send))
    return sent


HTTP: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}


@pytest.mark.parametrize(
    ("scope", "events", "status"),
    [
        ({"method": "GET"}, [], 405),
        ({"headers": [(b"content-length", b"1000000")]}, [], 413),
        (
            {},
            [{"type": "http.request", "body": b"x" * 60, "more_body": True}] * 2,
            413,
        ),
        ({}, [{"type": "http.request", "body": b"{}"}], 401),
        ({}, [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}], 400),
    ],
)
def test_what_is_no_signed_question_is_refused_unsigned(
    scope: dict[str, Any], events: list[dict[str, Any]], status: int
) -> None:
    app = CallbackReceiver(Listeners(), SECRET, max_request_bytes=100)
    start, _ = drive(app, {**HTTP, **scope}, *events)
    assert start["status"] == status
    assert b"outbox-signature" not in dict(start["headers"])


def test_a_signed_question_that_is_malformed_is_answered_unknown() -> None:
    from outbox.callbacks.signing import SignedHead

    head = SignedHead("POST", "/", "", str(int(time.time())), "0" * 32)
    headers = [
        (b"outbox-timestamp", head.timestamp.encode()),
        (b"outbox-request-id", head.request_id.encode()),
        (b"Outbox-Signature", Secrets(SECRET).sign_request(head, b"{}").encode()),
    ]
    start, body = drive(
        CallbackReceiver(Listeners(), SECRET),
        {**HTTP, "headers": headers},
        {"type": "http.request", "body": b"{}"},
    )
    assert start["status"] == 200
    assert json.loads(body["body"])["state"] == "UNKNOWN"


def test_web_sockets_are_closed() -> None:
    assert drive(CallbackReceiver(Listeners(), SECRET), {"type": "websocket"}) == [
        {"type": "websocket.close", "code": 1008}
    ]
