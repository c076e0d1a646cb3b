"""Certificates are verified against the name in the URL, by authorities that the operator trusts."""

from __future__ import annotations

import ssl
import time

import pytest
import trustme

from outbox.checking import LocalTransactionState
from tests.support.callback_asking import UNKNOWN, ask, make_asker, resolves_to
from tests.support.callback_peer import Line, Peer, a_view, answering


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_a_verified_server_is_asked(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, ["127.0.0.1"])
    with Peer(answering(), serving(authority, "shop.example.com")) as peer:
        asker = make_asker(peer.url(host="shop.example.com"), tls=trusting(authority))
        for _ in range(3):
            assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        asker.close()
    assert peer.connections == 1


def test_a_certificate_for_another_name_is_refused(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, ["127.0.0.1"])
    with Peer(answering(), serving(authority, "evil.example.com")) as peer:
        answer = ask(make_asker(peer.url(host="shop.example.com"), tls=trusting(authority)))
    assert answer.state is UNKNOWN
    assert "certificate" in (answer.remark or "")


def test_a_certificate_of_an_unknown_authority_is_refused(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, ["127.0.0.1"])
    with Peer(answering(), serving(authority, "shop.example.com")) as peer:
        answer = ask(make_asker(peer.url(host="shop.example.com")))
    assert answer.state is UNKNOWN
    assert "certificate" in (answer.remark or "")


def test_a_greeting_that_drips_ends_with_the_deadline(authority: trustme.CA) -> None:
    with Peer(answering()) as peer:

        def serve(line: Line) -> None:
            # The head of a TLS record that announces much, and then a byte now and then.
            line.write(b"\x16\x03\x03\x40\x00")
            while not peer.stopping.wait(0.1):
                line.write(b"\x02")

        peer.serve = serve
        url = f"https://127.0.0.1:{peer.port}/"
        answer = ask(make_asker(url, tls=trusting(authority)), 0.7)
    assert answer.state is UNKNOWN
    assert "no answer in time" in (answer.remark or "")
