"""One HTTP connection to an address that was checked: opened, asked and read under one deadline and one limit.

Time-outs of sockets begin again with every byte; here each step is given only what is left, so a peer that drips its
reply, or stops reading, ends with the deadline. Bytes are counted over status line, headers and body together.
No proxy is used, nothing is followed, nothing is decompressed.
"""

from __future__ import annotations

import contextlib
import io
import select
import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPResponse
from secrets import token_hex
from typing import Any, NamedTuple

from outbox.callbacks.signing import (
    REQUEST_ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Secrets,
    SignedHead,
)
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.calls.deadline import Bounded, left

MOST_HEADERS = 16 * 1024
"""Bytes that status line, headers and chunk sizes may take in addition to the body."""

MOST_TRIES = 4
"""Addresses of one name that are tried, one after the other."""

Resolved = list[tuple[Any, ...]]


def signed_headers(
    callback: HttpCallback, secrets: Secrets, body: bytes, content_type: str
) -> dict[str, str]:
    """Return the headers of a POST of this body, signed with the time and an id of its own."""
    head = SignedHead("POST", callback.path, callback.query, str(int(time.time())), token_hex(16))
    return {
        "Content-Type": content_type,
        TIMESTAMP_HEADER: head.timestamp,
        REQUEST_ID_HEADER: head.request_id,
        SIGNATURE_HEADER: secrets.sign_request(head, body),
    }


class ReplyError(Exception):
    """What came back is not a usable reply; the text states why."""


class NoReplyError(ConnectionError):
    """The connection ended before the first byte of a reply: an idle connection that the peer had given up."""


class Reply(NamedTuple):
    """A whole reply; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Channel:
    """An open connection, with or without TLS; asks one thing at a time.

    `reusable`: whether another question may follow; `opened_at` is by `time.monotonic()`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.opened_at = time.monotonic()
        self.reusable = True

    def is_fresh(self, longest_life: float) -> bool:
        """Whether it is young enough, and the peer neither closed it nor sent something unasked."""
        if not self.reusable or time.monotonic() - self.opened_at > longest_life:
            return False
        readable, _, _ = select.select([self._sock], [], [], 0)
        return not readable

    def exchange(
        self, callback: HttpCallback, headers: Mapping[str, str], body: bytes, deadline: float, most: int
    ) -> Reply:
        """POST a body and read the reply, of which the body may have `most` bytes.

        Raises:
            DeadlineError, TimeoutError: time was up.
            NoReplyError: the connection ended before a reply began.
            ReplyError, OSError, http.client.HTTPException: there is no usable reply.
        """
        self.reusable = False
        wire = _Wire(self._sock, deadline, most + MOST_HEADERS)
        try:
            wire.send(_head(callback, headers, len(body)) + body)
            response = HTTPResponse(wire, method="POST")  # type: ignore[arg-type]  # it only calls makefile()
            response.begin()
        except ConnectionError as error:
            if not wire.received:
                raise NoReplyError("the connection ended before a reply began") from error
            raise
        text = response.read(most + 1)
        if len(text) > most:
            raise ReplyError(f"the reply is larger than {most} bytes")
        self.reusable = response.isclosed() and not response.will_close
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, text)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._sock.close()


def open_channel(
    callback: HttpCallback,
    allowed: AllowList,
    lookup: Bounded[Resolved],
    tls: ssl.SSLContext,
    deadline: float,
) -> Channel:
    """Resolve the host once, check each of its addresses, connect to one of exactly these.

    Raises:
        RefusedAddressError: host or address is not allowed; then nothing was connected to.
        DeadlineError, TimeoutError, OSError: no address could be reached in time, or TLS did not verify.
    """
    tries = resolve(callback, allowed, lookup, deadline)[:MOST_TRIES]
    for number, (family, kind, proto, _, address) in enumerate(tries, 1):
        sock = socket.socket(family, kind, proto)
        try:
            sock.settimeout(left(deadline, "connecting") / (len(tries) - number + 1))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if callback.scheme == "https":
                sock.settimeout(left(deadline, "greeting by TLS"))
                sock = tls.wrap_socket(sock, server_hostname=callback.host)
            return Channel(sock)
        except OSError as error:
            sock.close()
            # Another address cannot repair a certificate, nor give time back.
            if number == len(tries) or isinstance(error, ssl.SSLError) or time.monotonic() >= deadline:
                raise
        except BaseException:
            sock.close()
            raise
    raise OSError("the host has no address")


def resolve(
    callback: HttpCallback, allowed: AllowList, lookup: Bounded[Resolved], deadline: float
) -> Resolved:
    """Resolve the host once, and return its addresses if it and all of them are allowed.

    Raises:
        RefusedAddressError: it, or one of them, is not.
        DeadlineError, OSError: it could not be resolved, or not in time.
    """
    allowed.check_host(callback)
    found = lookup.call(
        lambda: socket.getaddrinfo(callback.host, callback.port, type=socket.SOCK_STREAM),
        deadline,
        "resolving the host",
    )
    for entry in found:
        allowed.check_address(str(entry[4][0]), plain=callback.scheme == "http")
    return found


def _head(callback: HttpCallback, headers: Mapping[str, str], length: int) -> bytes:
    lines = [
        f"POST {callback.target} HTTP/1.1",
        f"Host: {callback.place}",
        "Accept-Encoding: identity",
        "Connection: keep-alive",
        f"Content-Length: {length}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class _Wire(io.RawIOBase):
    """A socket under a deadline, in the shape that HTTPResponse reads from."""

    def __init__(self, sock: socket.socket, deadline: float, most: int) -> None:
        self._sock, self._deadline, self._most = sock, deadline, most
        self.received = 0

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 4096)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(left(self._deadline, "waiting for the reply"))
        count = self._sock.recv_into(buffer)
        self.received += count
        if self.received > self._most:
            raise ReplyError(f"the reply is larger than {self._most} bytes in all")
        return count

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(left(self._deadline, "sending the request"))
            rest = rest[self._sock.send(rest[: 64 * 1024]) :]
