"""Asking a callback as the checker does, held to its deadline; and name servers that answer what a test wants."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest

from outbox.callbacks import Secrets
from outbox.checking import Answer, LocalTransactionState
from outbox.records import MessageView
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.http import HttpAsker
from outbox_relay.checker.callback import read_callback
from tests.support.callback_peer import SECRET, Line, Peer, a_view
from tests.support.stopwatch import Stopwatch

UNKNOWN = LocalTransactionState.UNKNOWN
SLACK_S = 1.0
"""What a busy machine may add to a deadline."""


def make_asker(
    url: str,
    *,
    allow: tuple[str, ...] | None = None,
    networks: tuple[str, ...] = ("127.0.0.0/8",),
    tls: ssl.SSLContext | None = None,
    secret: str = SECRET,
) -> HttpAsker:
    callback = read_callback({"kind": "http", "url": url})
    assert isinstance(callback, HttpCallback)
    hosts = (callback.place,) if allow is None else allow
    context = tls or ssl.create_default_context()
    return HttpAsker("shop", callback, Secrets(secret), AllowList.read(hosts, networks), context)


def ask(asker: HttpAsker, seconds: float = 5.0, view: MessageView | None = None) -> Answer:
    """Ask, and hold the asker to its deadline."""
    view = view or a_view()
    with Stopwatch() as watch:
        try:
            return asker.ask(view, time.monotonic() + seconds)
        finally:
            took = watch.seconds
            asker.close()
            assert took < seconds + SLACK_S, f"took {took:.1f} s"


def ask_peer(serve: Callable[[Line], None], seconds: float = 5.0, **settings: Any) -> Answer:
    with Peer(serve) as peer:
        return ask(make_asker(peer.url(), **settings), seconds)


def resolves_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let the name server answer these lists of addresses, one after the other; returns who was asked for."""
    asked: list[str] = []

    def lookup(host: str, port: int, **_: Any) -> list[Any]:
        addresses = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in addresses
        ]

    monkeypatch.setattr("outbox_relay.calls.channel.socket.getaddrinfo", lookup)
    return asked
