"""What an operator may register as a callback, and which hosts and networks a checker may be allowed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList, RefusedAddressError
from outbox_relay.checker.askers.http import secret_variables
from outbox_relay.checker.callback import (
    CallbackError,
    SqlCallback,
    read_callback,
    validate_callback,
)

QUERY = "SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s"


def http(url: str) -> HttpCallback:
    callback = read_callback({"kind": "http", "url": url})
    assert isinstance(callback, HttpCallback)
    return callback


def test_a_url_is_read_into_its_parts() -> None:
    assert http("https://Shop.Example.COM./a%20b/c?x=%2F") == HttpCallback(
        "https", "shop.example.com", 443, "/a%20b/c?x=%2F", "/a b/c", "x=%2F"
    )
    assert http("http://[::1]:8080").target == "/"


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        ({}, "kind is None; allowed: http, sql"),
        ({"kind": "grpc"}, "kind is 'grpc'"),
        ({"kind": "http"}, "url is missing"),
        ({"kind": "http", "url": "https://h/", "secret": "x"}, "secret is not a field"),
        ({"kind": "http", "url": "ftp://h/"}, "scheme 'ftp'"),
        ({"kind": "http", "url": "file:///etc/passwd"}, "url cannot be read"),
        ({"kind": "http", "url": "https://user:password@h/"}, "user name or password"),
        ({"kind": "http", "url": "https://h/#a"}, "fragment"),
        ({"kind": "http", "url": "https://h/a b"}, "white space"),
        ({"kind": "http", "url": "https://h/\r\nX: y"}, "white space"),
        ({"kind": "http", "url": "https://h/%0a"}, "control character"),
        ({"kind": "http", "url": "https://h:99999/"}, "cannot be read"),
        ({"kind": "http", "url": "https://h:0/"}, "port 0"),
        ({"kind": "http", "url": "https://*.example.com/"}, "names no host"),
        ({"kind": "http", "url": "https://"}, "cannot be read"),
        ({"kind": "sql"}, "query is missing"),
        ({"kind": "sql", "query": "DELETE FROM payment"}, "must begin with SELECT"),
        ({"kind": "sql", "query": QUERY + ";"}, "semicolon"),
        ({"kind": "sql", "query": "SELECT %(body)s"}, "query names %(body)s; there are: %(message_id)s"),
        ({"kind": "sql", "query": "SELECT 'a' LIKE 'a%'"}, "single %"),
        ({"kind": "sql", "query": "SELECT %s"}, "single %"),
        ({"kind": "sql", "query": "SELECT %(biz_id)d"}, "without s"),
        (
            {"kind": "sql", "query": QUERY, "dsn_env": "postgresql://u:p@h/d"},
            "begins with OUTBOX_CALLBACK_DSN_",
        ),
        (
            {"kind": "sql", "query": QUERY, "dsn_env": "OUTBOX_CALLBACK_SECRET"},
            "such as OUTBOX_CALLBACK_DSN_SHOP",
        ),
        ({"kind": "sql", "query": QUERY, "dsn_env": "OUTBOX_DSN"}, "such as OUTBOX_CALLBACK_DSN_SHOP"),
        ({"kind": "sql", "query": QUERY, "role": ""}, "role must be"),
        ({"kind": "sql", "query": QUERY, "url": "https://h/"}, "url is not a field"),
    ],
)
def test_a_callback_that_cannot_work_is_refused_with_the_reason(
    callback: dict[str, Any], problem: str
) -> None:
    (found,) = validate_callback(callback)
    assert problem in found
    with pytest.raises(CallbackError):
        read_callback(callback)


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        "select 'COMMIT' where %(tags)s::text[] && '{a}' and %(key)s like 'a%%'",
        "\n  WITH a AS (SELECT 1) SELECT true FROM a",
        "SELECT\n true",
        "VALUES ('UNKNOWN')",
        "(SELECT true)",
    ],
)
def test_a_query_may_be_any_reading_statement(query: str) -> None:
    assert validate_callback({"kind": "sql", "query": query}) == []
    assert read_callback(
        {"kind": "sql", "query": query, "dsn_env": "OUTBOX_CALLBACK_DSN_SHOP", "role": "reader"}
    ) == SqlCallback(query, "OUTBOX_CALLBACK_DSN_SHOP", "reader")


@pytest.mark.parametrize(
    ("listed", "url", "allowed"),
    [
        ("shop.example.com", "https://shop.example.com/x", True),
        ("SHOP.example.com.", "https://shop.example.com/x", True),
        ("shop.example.com", "http://shop.example.com/x", True),
        ("shop.example.com", "https://shop.example.com:8443/x", False),
        ("shop.example.com:8443", "https://shop.example.com:8443/x", True),
        ("shop.example.com:8443", "https://shop.example.com/x", False),
        ("shop.example.com", "https://shop.example.com.evil.org/x", False),
        ("shop.example.com", "https://evilshop.example.com/x", False),
        ("example.com", "https://shop.example.com/x", False),
        ("[2001:db8::1]:8443", "https://[2001:db8::1]:8443/", True),
        ("2001:db8::1", "https://[2001:db8::1]/", True),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
    ],
)
def test_a_host_is_allowed_by_its_whole_name_and_port(listed: str, url: str, allowed: bool) -> None:
    hosts = AllowList.read([listed])
    if allowed:
        hosts.check_host(http(url))
    else:
        with pytest.raises(RefusedAddressError, match="--allow-callback"):
            hosts.check_host(http(url))


def test_an_empty_allow_list_allows_nothing() -> None:
    with pytest.raises(RefusedAddressError):
        AllowList().check_host(http("https://shop.example.com/"))


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_listed_network_allows_its_addresses_and_no_others(address: str) -> None:
    allowed = AllowList.read(networks=["10.1.0.0/16", "fd00::/8"])
    allowed.check_address(address, plain=True)
    allowed.check_address("fd00::1", plain=False)
    with pytest.raises(RefusedAddressError):
        allowed.check_address("10.2.0.1", plain=False)


def test_public_addresses_are_allowed_over_tls() -> None:
    AllowList().check_address("93.184.216.34", plain=False)
    AllowList().check_address("2606:2800:220:1:248:1893:25c8:1946", plain=False)


@pytest.mark.parametrize("text", ["", "a:0", "a:x", "a/b", "*.example.com", "a b"])
def test_what_is_no_host_cannot_be_listed(text: str) -> None:
    with pytest.raises(ValueError, match="neither HOST nor HOST:PORT"):
        AllowList.read([text])


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "all"])
def test_what_is_no_network_cannot_be_listed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network"):
        AllowList.read(networks=[text])


@pytest.mark.parametrize(
    ("group", "own"),
    [
        ("shop", "SHOP"),
        ("shop_eu2", "SHOP_EU2"),
        ("shop-eu", "SHOP__EU"),
        ("Shop.付", "___53HOP___2E___E4BB98"),
    ],
)
def test_a_groups_own_secret_comes_first(group: str, own: str) -> None:
    assert secret_variables(group) == (f"OUTBOX_CALLBACK_SECRET_{own}", "OUTBOX_CALLBACK_SECRET")


def test_no_two_groups_share_a_variable_of_their_own() -> None:
    groups = ["".join(letters) for length in range(1, 5) for letters in product("aA2d-_.é", repeat=length)]
    assert len({secret_variables(group)[0] for group in groups}) == len(groups)
