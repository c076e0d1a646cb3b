"""A callback goes to hosts and addresses that the operator allows, whatever names, redirects and proxies say."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from outbox.checking import Answer, LocalTransactionState
from tests.support.callback_asking import SLACK_S, UNKNOWN, ask, ask_peer, make_asker, resolves_to
from tests.support.callback_peer import Line, Peer, a_view, answering, reply
from tests.support.stopwatch import Stopwatch


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on any attempt to connect."""

    def connect(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_a_signed_reply_is_the_answer(state: LocalTransactionState) -> None:
    body = f'{{"state": "{state}", "remark": "found in the ledger"}}'.encode()
    assert ask_peer(answering(body=body)) == Answer(state, "found in the ledger")


def test_the_question_is_signed_and_whole() -> None:
    seen = []

    def serve(line: Line) -> None:
        question = line.read()
        assert question is not None
        seen.append(question)
        line.write(reply(question))

    with Peer(serve) as peer:
        ask(make_asker(peer.url("/a%20b?x=1&y=%2F")))
    (question,) = seen
    assert (question.method, question.target) == ("POST", "/a%20b?x=1&y=%2F")
    assert question.headers["host"] == f"127.0.0.1:{peer.port}"
    assert question.json["biz_id"] == "p-7"
    assert question.json["tags"] == ["创建订单", "支付"]


@pytest.mark.usefixtures("no_connection")
def test_a_host_outside_the_allow_list_is_not_called() -> None:
    answer = ask(make_asker("https://evil.example.com/x", allow=("shop.example.com",)))
    assert answer.state is UNKNOWN
    assert "evil.example.com:443 is not in the allow-list" in (answer.remark or "")


@pytest.mark.usefixtures("no_connection")
def test_another_port_of_an_allowed_host_is_not_called() -> None:
    answer = ask(make_asker("https://shop.example.com:5432/", allow=("shop.example.com",)))
    assert "shop.example.com:5432 is not in the allow-list" in (answer.remark or "")


@pytest.mark.usefixtures("no_connection")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "0.0.0.0",
        "192.168.0.1",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "2001:db8::1",
        "2620:4f:8000::1",
        "3fff::1",
        "5f00::1",
    ],
)
def test_a_name_that_points_inwards_is_not_followed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, [address])
    answer = ask(make_asker("https://shop.example.com/", allow=("shop.example.com",), networks=()))
    assert answer.state is UNKNOWN
    assert "is not a public address" in (answer.remark or "")


@pytest.mark.usefixtures("no_connection")
def test_one_refused_address_among_several_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ["93.184.216.34", "10.0.0.1"])
    answer = ask(make_asker("https://shop.example.com/", allow=("shop.example.com",), networks=()))
    assert "10.0.0.1 is not a public address" in (answer.remark or "")


def test_a_name_is_resolved_once_and_connected_to_as_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second answer, which would lead elsewhere, is never asked for."""
    with Peer(answering()) as good, Peer(answering()) as evil:
        asked = resolves_to(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
        answer = ask(make_asker(good.url(host="shop.example.com")))
    assert answer.state is LocalTransactionState.COMMIT
    assert asked == ["shop.example.com"]
    assert (good.connections, evil.connections) == (1, 0)


def test_a_name_that_moved_to_a_refused_address_is_refused_at_the_next_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def once(line: Line) -> None:
        question = line.read()
        assert question is not None
        line.write(reply(question, more="Connection: close\r\n"))

    with Peer(once) as peer:
        resolves_to(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
        asker = make_asker(peer.url(host="shop.example.com"))
        assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        answer = ask(asker)
    assert "10.0.0.1 is not a public address" in (answer.remark or "")
    assert peer.connections == 1


@pytest.mark.usefixtures("no_connection")
def test_http_without_tls_stays_inside_listed_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ["93.184.216.34"])
    answer = ask(make_asker("http://shop.example.com/", allow=("shop.example.com",)))
    assert "http without TLS to 93.184.216.34" in (answer.remark or "")


def test_a_name_server_that_hangs_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(answering()) as peer:
        monkeypatch.setattr(
            "outbox_relay.calls.channel.socket.getaddrinfo", lambda *_, **__: peer.stopping.wait(30)
        )
        asker = make_asker(peer.url())
        for _ in range(3):  # more than the lookups that may be left behind
            with Stopwatch() as watch:
                answer = asker.ask(a_view(), time.monotonic() + 0.3)
            assert watch.seconds < 0.3 + SLACK_S
            assert "resolving the host" in (answer.remark or "")


def test_redirects_are_not_followed() -> None:
    with Peer(answering()) as target:

        def serve(line: Line) -> None:
            question = line.read()
            assert question is not None
            line.write(reply(question, b"", status=307, more=f"Location: {target.url()}\r\n"))

        answer = ask_peer(serve)
    assert answer.state is UNKNOWN
    assert "status 307: redirects are not followed" in (answer.remark or "")
    assert target.connections == 0


def test_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(answering()) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert ask_peer(answering()).state is LocalTransactionState.COMMIT
    assert proxy.connections == 0
