"""A producer group's callback as the operator registered it: read, and checked before it is stored.

It names where to ask, and holds no secrets: those are in the environment of the checker. A message never names
where to ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from outbox_relay.calls.address import DEFAULT_PORTS, UNPRINTABLE, HttpCallback, host_name

PARAMETERS = ("message_id", "topic", "key", "biz_type", "biz_id", "transaction_id", "tags")
"""What a query may name as %(…)s; the values are always bound, never part of the text."""

_FIELDS = {"http": {"kind", "url"}, "sql": {"kind", "query", "dsn_env", "role"}}
_PLACEHOLDER = re.compile(r"%(?:%|\((?P<name>[^)]*)\)(?P<form>.)?|(?P<bare>.|$))", re.DOTALL)
_VARIABLE = re.compile(r"OUTBOX_CALLBACK_DSN_[A-Z0-9_]+")
"""What a row may name of the checker's environment: what was put there for queries, and nothing else."""


class CallbackError(ValueError):
    """A registered callback cannot be used; the text names each problem."""


@dataclass(frozen=True, slots=True)
class SqlCallback:
    """How a group is asked by a query; `dsn_env` names the variable that holds another database's address."""

    query: str
    dsn_env: str | None = None
    role: str | None = None


def validate_callback(callback: Mapping[str, Any]) -> list[str]:
    """List what is wrong with a callback, for people; nothing when it can be registered.

    What only the checker's process knows (its allow-list, its secrets) is not checked here.
    """
    kind = callback.get("kind")
    if kind not in _FIELDS:
        return [f"kind is {kind!r}; allowed: http, sql"]
    unknown = sorted(set(callback) - _FIELDS[kind])
    problems = [f"{name} is not a field of a callback by {kind}" for name in unknown]
    return problems + (_http_problems(callback) if kind == "http" else _sql_problems(callback))


def read_callback(callback: Mapping[str, Any]) -> HttpCallback | SqlCallback:
    """Read a registered callback.

    Raises:
        CallbackError: it was stored without being validated, and is wrong.
    """
    problems = validate_callback(callback)
    if problems:
        raise CallbackError("; ".join(problems))
    if callback["kind"] == "sql":
        return SqlCallback(callback["query"], callback.get("dsn_env"), callback.get("role"))
    url = urlsplit(callback["url"])
    path = url.path or "/"
    return HttpCallback(
        url.scheme,
        host_name(url.hostname or ""),
        url.port or DEFAULT_PORTS[url.scheme],
        path + (f"?{url.query}" if url.query else ""),
        unquote(path),
        url.query,
    )


def _http_problems(callback: Mapping[str, Any]) -> list[str]:
    text = callback.get("url")
    if not isinstance(text, str) or not text:
        return ["url is missing; give one such as https://shop.example.com/outbox"]
    if UNPRINTABLE.search(text) or not text.isascii():
        return ["url contains white space or other characters that must be percent-encoded"]
    try:
        url = urlsplit(text)
        port = url.port
        host = host_name(url.hostname or "")
    except ValueError as error:
        return [f"url cannot be read: {error}"]
    problems = []
    if url.scheme not in DEFAULT_PORTS:
        problems.append(
            f"url has the scheme {url.scheme!r}; allowed: https, and http inside a private network"
        )
    if url.username is not None or url.password is not None:
        problems.append("url holds a user name or password; requests are signed instead")
    if "#" in text:
        problems.append("url has a fragment, which is never sent")
    if port == 0:
        problems.append("url has port 0")
    if "%" in host or "*" in host:
        problems.append(f"url names no host: {host!r}")
    if UNPRINTABLE.search(unquote(url.path).replace(" ", "")):
        problems.append("url has a control character in its path")
    return problems


def _sql_problems(callback: Mapping[str, Any]) -> list[str]:
    query = callback.get("query")
    if not isinstance(query, str) or not query.strip():
        return [
            "query is missing; give one such as SELECT state = 'paid' FROM payments WHERE id = %(biz_id)s"
        ]
    problems = _placeholder_problems(query)
    if query.lstrip("( \t\r\n").partition(" ")[0].upper().split("\n")[0] not in ("SELECT", "WITH", "VALUES"):
        problems.append("query must begin with SELECT, WITH or VALUES; it runs read-only")
    if query.rstrip().endswith(";"):
        problems.append("query ends with a semicolon; give one statement without it")
    dsn_env = callback.get("dsn_env")
    if dsn_env is not None and (not isinstance(dsn_env, str) or not _VARIABLE.fullmatch(dsn_env)):
        problems.append(
            "dsn_env must name a variable of the checker's environment that begins with OUTBOX_CALLBACK_DSN_, such as "
            "OUTBOX_CALLBACK_DSN_SHOP"
        )
    role = callback.get("role")
    if role is not None and (not isinstance(role, str) or not role):
        problems.append("role must be the name of a role that the checker's user may take on")
    return problems


def _placeholder_problems(query: str) -> list[str]:
    problems = []
    for found in _PLACEHOLDER.finditer(query):
        if found["name"] is not None:
            if found["name"] not in PARAMETERS:
                problems.append(
                    f"query names %({found['name']})s; there are: {', '.join(f'%({name})s' for name in PARAMETERS)}"
                )
            elif found["form"] != "s":
                problems.append(f"query has %({found['name']}) without s behind it")
        elif found["bare"] is not None:
            problems.append("query has a single %; write %% for a percent sign, as in LIKE 'a%%'")
    return problems
