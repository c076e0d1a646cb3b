"""Asks a producer group over HTTP: signed, to allowed addresses only, within the deadline; all else is UNKNOWN.

What becomes of a question does not depend on the message: URL, secret and allow-list come from the operator.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Mapping
from http.client import HTTPException

from outbox.callbacks import protocol
from outbox.callbacks.signing import SIGNATURE_HEADER, Secrets
from outbox.checking import Answer, FailedAnswer, LocalTransactionState, NoCheckerError
from outbox.errors import OutboxError
from outbox.operations.remarks import shortened
from outbox.records import MessageView
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList, RefusedAddressError
from outbox_relay.calls.channel import (
    Channel,
    NoReplyError,
    Reply,
    ReplyError,
    Resolved,
    open_channel,
    resolve,
    signed_headers,
)
from outbox_relay.calls.deadline import Bounded

SECRET_VARIABLE = "OUTBOX_CALLBACK_SECRET"  # noqa: S105  (the name of a variable)

LONGEST_LIFE_S = 60.0
"""Seconds after which a connection is not used again: a host that moved is followed, and checked again."""

LOOKUPS_AT_ONCE = 2

_SIGN = re.compile(r"(?<=[a-z0-9])([-_])(?=[a-z0-9])|[^a-z0-9]")
_BETWEEN = {"_": "_", "-": "__"}


def secret_variables(group: str) -> tuple[str, str]:
    """Name the variables that may hold a group's secret, the group's own first; no two groups have the same.

    Lower-case letters and digits become capitals, `_` and `-` between two of them `_` and `__`, everything else `___`
    and the hexadecimal digits of its UTF-8 bytes: the number of underscores distinguishes them.
    """
    own = _SIGN.sub(lambda found: _BETWEEN[found[1]] if found[1] else _escaped(found[0]), group)
    return f"{SECRET_VARIABLE}_{own.upper()}", SECRET_VARIABLE


def _escaped(letter: str) -> str:
    return f"___{letter.encode().hex()}"


def find_secrets(group: str, environment: Mapping[str, str]) -> Secrets | None:
    """Read a group's shared secrets from the environment; None without any.

    Raises:
        ConfigurationError: there is one, and it is too short.
    """
    for name in secret_variables(group):
        if environment.get(name, "").strip():
            return Secrets.from_text(environment[name])
    return None


class HttpAsker:
    """Asks one group; safe for several threads. Connections are kept and used again while they are young.

    Args:
        group: its name, for messages.
        callback: where to ask.
        secrets: shared with the group; None: the group cannot be asked, and `missing` reports that.
        allowed: the operator's allow-list.
        tls: how servers are verified.
        connections: idle connections that are kept at most.
    """

    def __init__(
        self,
        group: str,
        callback: HttpCallback,
        secrets: Secrets | None,
        allowed: AllowList,
        tls: ssl.SSLContext,
        *,
        connections: int = 4,
    ) -> None:
        self._group, self._callback, self._secrets, self._allowed = group, callback, secrets, allowed
        self._tls, self._connections = tls, connections
        self._lookup: Bounded[Resolved] = Bounded(LOOKUPS_AT_ONCE)
        self._idle: list[Channel] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def place(self) -> str:
        """Where it asks, for people."""
        return f"{self._callback.scheme}://{self._callback.place}{self._callback.target}"

    def problem(self, deadline: float) -> str | None:
        """Return why this group cannot be asked from here, or None; resolves its host and connects nowhere."""
        if self._secrets is None:
            return self._no_secret
        try:
            resolve(self._callback, self._allowed, self._lookup, deadline)
        except (RefusedAddressError, OSError) as error:
            return str(error)
        return None

    @property
    def _no_secret(self) -> str:
        return f"no secret for its callback: set {' or '.join(secret_variables(self._group))}"

    def unable(self) -> str | None:
        """Return why this process can ask about no message of the group, or None: it lacks the secret."""
        return self._no_secret if self._secrets is None else None

    def missing(self, view: MessageView) -> str | None:
        """Return why no listener can be asked about this message, or None."""
        return self._no_secret if self._secrets is None else None

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Ask about one half message; answer by `deadline` (seconds of `time.monotonic()`).

        Raises:
            NoCheckerError: the application's signed reply: no listener is registered there for the message.
        """
        try:
            if self._secrets is None:
                return _failed(self._no_secret)
            return self._exchange(self._secrets, view, deadline)
        except NoCheckerError:
            raise
        except TimeoutError as error:
            return _failed(f"no answer in time: {error}")
        except (RefusedAddressError, ReplyError, OutboxError) as error:
            return _failed(str(error))
        except (OSError, HTTPException, ValueError) as error:
            return _failed(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their question ends."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for channel in idle:
            channel.close()

    def _exchange(self, secrets: Secrets, view: MessageView, deadline: float) -> Answer:
        body = protocol.request_body(view)
        headers = signed_headers(self._callback, secrets, body, protocol.CONTENT_TYPE)
        reply = self._post(headers, body, deadline)
        _check_head(reply)
        secrets.verify_reply(
            headers[SIGNATURE_HEADER], reply.status, reply.body, reply.headers.get(SIGNATURE_HEADER, "")
        )
        return protocol.answer_of_reply(reply.status, reply.body)

    def _post(self, headers: Mapping[str, str], body: bytes, deadline: float) -> Reply:
        channel = self._take()
        if channel is not None:
            try:
                return self._use(channel, headers, body, deadline)
            except NoReplyError:
                pass  # closed by the peer while it was idle; asking again changes nothing there
        channel = open_channel(self._callback, self._allowed, self._lookup, self._tls, deadline)
        return self._use(channel, headers, body, deadline)

    def _use(self, channel: Channel, headers: Mapping[str, str], body: bytes, deadline: float) -> Reply:
        try:
            return channel.exchange(self._callback, headers, body, deadline, protocol.LARGEST_REPLY)
        finally:
            self._give_back(channel)

    def _take(self) -> Channel | None:
        while True:
            with self._lock:
                channel = self._idle.pop() if self._idle else None
            if channel is None or channel.is_fresh(LONGEST_LIFE_S):
                return channel
            channel.close()

    def _give_back(self, channel: Channel) -> None:
        with self._lock:
            if channel.reusable and not self._closed and len(self._idle) < self._connections:
                self._idle.append(channel)
                return
        channel.close()


def _check_head(reply: Reply) -> None:
    """Refuse by status and headers, before the body is looked at."""
    if 300 <= reply.status < 400:
        raise ReplyError(
            f"status {reply.status}: redirects are not followed (a mounted receiver wants a / at the end of the URL)"
        )
    if reply.status == 401:
        raise ReplyError("status 401: do both ends have the same secret, clock and path?")
    if reply.status not in (protocol.OK, protocol.NO_CHECKER_STATUS):
        raise ReplyError(f"status {reply.status}")
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != protocol.CONTENT_TYPE or reply.headers.get("content-encoding", "identity") != "identity":
        raise ReplyError(
            f"status {reply.status} with content of type {kind[:60]!r}, not {protocol.CONTENT_TYPE}"
        )


def _failed(why: str) -> Answer:
    return FailedAnswer(LocalTransactionState.UNKNOWN, shortened(f"callback: {why}"))
