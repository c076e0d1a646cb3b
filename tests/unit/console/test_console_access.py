"""Who may use the console, decided without a server: hosts, sessions, identities of a proxy, forms."""

from __future__ import annotations

import ipaddress

import pytest

from outbox_relay.console.access import SESSION_S, Access, AccessOptions, RefusedError

TOKEN = "a-token-of-24-characters"
PROXY = ipaddress.ip_network("10.0.0.7")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8642", "localhost:8642", "[::1]:8642", "10.1.2.3", "console.shop:80"]
)
def test_a_host_that_is_ours_is_let_in(host: str) -> None:
    Access(AccessOptions(hostnames=frozenset({"console.shop"})), "u").require_host(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil.example", "x y"]
)
def test_a_name_that_a_stranger_points_here_is_refused(host: str) -> None:
    with pytest.raises(RefusedError, match="--hostname") as refused:
        Access(AccessOptions(), "u").require_host(host)
    assert refused.value.status == 421


def test_on_loopback_a_visitor_has_a_session_at_once_and_keeps_it() -> None:
    access = Access(AccessOptions(), "ada")
    first = access.visitor("127.0.0.1", {}, None)
    assert first is not None
    assert (first.name, first.is_new) == ("ada", True)
    again = access.visitor("127.0.0.1", {}, first.cookie)
    assert again is not None
    assert (again.csrf, again.is_new) == (first.csrf, False)


def test_a_session_of_a_token_ends_and_cannot_be_forged_or_lent() -> None:
    clock = Clock()
    access = Access(AccessOptions(token=TOKEN), "u", clock=clock)
    assert access.visitor("127.0.0.1", {}, None) is None
    with pytest.raises(RefusedError, match="not the token"):
        access.log_in(f"{TOKEN}x", "ada")
    visitor = access.log_in(TOKEN, "ada")
    known = access.visitor("127.0.0.1", {}, visitor.cookie)
    assert known is not None
    assert known.name == "ada"
    expires_at, *rest = visitor.cookie.split(".")
    assert access.visitor("127.0.0.1", {}, ".".join([str(int(expires_at) + 1), *rest])) is None
    assert Access(AccessOptions(token=TOKEN), "u").visitor("127.0.0.1", {}, visitor.cookie) is None, (
        "started again"
    )
    clock.now += SESSION_S + 1
    assert access.visitor("127.0.0.1", {}, visitor.cookie) is None


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 101])
def test_a_name_that_cannot_stand_in_an_audit_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="for the audit"):
        Access(AccessOptions(token=TOKEN), "u").log_in(TOKEN, name)


def test_only_a_named_proxy_says_who_somebody_is() -> None:
    access = Access(AccessOptions(identity_header="X-User", proxies=(PROXY,)), "u")
    visitor = access.visitor("10.0.0.7", {"x-user": "ada"}, None)
    assert visitor is not None
    assert visitor.name == "ada"
    other = access.visitor("10.0.0.7", {"x-user": "bob"}, visitor.cookie)
    assert other is not None
    assert (other.name, other.csrf == visitor.csrf) == ("bob", False), "another person has another session"
    for peer, headers in (("10.0.0.8", {"x-user": "ada"}), ("10.0.0.7", {})):
        with pytest.raises(RefusedError):
            access.visitor(peer, headers, visitor.cookie)


def test_a_form_brings_what_only_a_page_of_its_session_holds() -> None:
    access = Access(AccessOptions(), "u")
    mine, other = (access.visitor("127.0.0.1", {}, None) for _ in range(2))
    assert mine is not None
    assert other is not None
    here = {"host": "localhost:8642", "origin": "http://localhost:8642", "sec-fetch-site": "same-origin"}
    access.require_own_form(mine, here, mine.csrf)
    for headers, csrf in (
        (here, ""),
        (here, other.csrf),
        ({**here, "origin": "http://evil.example"}, mine.csrf),
        ({**here, "origin": "null"}, mine.csrf),
        ({"host": "localhost:8642", "sec-fetch-site": "cross-site"}, mine.csrf),
    ):
        with pytest.raises(RefusedError):
            access.require_own_form(mine, headers, csrf)
