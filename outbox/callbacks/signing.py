"""Signatures of callbacks: HMAC-SHA256 over a request, and over the reply to exactly that request.

Version 1 signs lines, joined by one newline, with the shared secret (UTF-8) as the key; the header value is "v1="
and the digest in hexadecimal digits:

    request   v1, "request", method, path, query, timestamp, request id, SHA-256 of the body (hex)
    reply     v1, "reply", status, the request's header value, SHA-256 of the body (hex)

The path is the one of the callback URL, percent-decoded; the query stands as it is in the URL, without "?"; the
timestamp counts seconds since 1970 (UTC). A request id is random and used once, so an old reply fits no new request,
and a reply never passes for a request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from outbox.errors import ConfigurationError, OutboxError

VERSION = "v1"
SIGNATURE_HEADER = "outbox-signature"
TIMESTAMP_HEADER = "outbox-timestamp"
REQUEST_ID_HEADER = "outbox-request-id"

SHORTEST_SECRET = 16
"""Characters; a shared secret should be random: `openssl rand -hex 32`."""

TOLERANCE_S = 300.0
"""Seconds by which the clocks of both ends may differ, and for which a request stays valid."""

_REQUEST_ID = re.compile(r"[0-9a-zA-Z-]{16,64}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class SignatureError(OutboxError):
    """A request or a reply is not signed, is signed with another secret, is too old, or was changed on its way."""


class SignedHead(NamedTuple):
    """The parts of a request that are signed together with its body."""

    method: str
    path: str
    query: str
    timestamp: str
    request_id: str


class Secrets:
    """The shared secrets of one callback: the first signs, all are accepted.

    Replacing a secret takes three steps, and no call fails meanwhile: add the new one behind the old one at both
    ends, move it to the front at both ends, remove the old one.

    Args:
        secrets: texts of 16 characters or more.

    Raises:
        ConfigurationError: none was given, or one is too short. The text never repeats a secret.
    """

    def __init__(self, *secrets: str) -> None:
        if not secrets:
            raise ConfigurationError("callback secret: none is given; allowed: one or more texts")
        for number, secret in enumerate(secrets, 1):
            if len(secret) < SHORTEST_SECRET:
                raise ConfigurationError(
                    f"callback secret {number} of {len(secrets)} is shorter than {SHORTEST_SECRET} characters; "
                    "make one with: openssl rand -hex 32"
                )
        self._keys = tuple(secret.encode() for secret in secrets)

    @classmethod
    def from_text(cls, text: str) -> Secrets:
        """Read the secrets of an environment variable: separated by white space or commas."""
        return cls(*(part for part in re.split(r"[\s,]+", text) if part))

    def __repr__(self) -> str:
        return f"Secrets({', '.join(['***'] * len(self._keys))})"

    def sign_request(self, head: SignedHead, body: bytes) -> str:
        """Return the value of the header `outbox-signature` of a request."""
        return self._sign(self._keys[0], *_request_lines(head, body))

    def verify_request(self, head: SignedHead, body: bytes, signature: str, *, now: float) -> None:
        """Accept a request that was signed with one of the secrets within 300 s of `now` (seconds since 1970).

        Raises:
            SignatureError: naming what is wrong.
        """
        if not _TIMESTAMP.fullmatch(head.timestamp) or not _REQUEST_ID.fullmatch(head.request_id):
            raise SignatureError("the request's timestamp or id is missing or malformed")
        self._verify("request", signature, *_request_lines(head, body))
        # After the signature: whoever does not know the secret learns nothing about this machine's clock.
        if abs(now - int(head.timestamp)) > TOLERANCE_S:
            raise SignatureError(
                f"the request's timestamp is {now - int(head.timestamp):+.0f} s from now, "
                f"allowed: {TOLERANCE_S:.0f} s"
            )

    def sign_reply(self, request_signature: str, status: int, body: bytes) -> str:
        """Return the value of the header `outbox-signature` of the reply to one request."""
        return self._sign(self._keys[0], *_reply_lines(request_signature, status, body))

    def verify_reply(self, request_signature: str, status: int, body: bytes, signature: str) -> None:
        """Accept a reply to exactly this request.

        Raises:
            SignatureError: it is not signed, signed with another secret, or belongs to another request.
        """
        self._verify("reply", signature, *_reply_lines(request_signature, status, body))

    def _sign(self, key: bytes, *lines: str) -> str:
        return f"{VERSION}={hmac.new(key, _joined(lines), hashlib.sha256).hexdigest()}"

    def _verify(self, what: str, signature: str, *lines: str) -> None:
        version, _, digest = signature.partition("=")
        if not digest:
            raise SignatureError(f"the {what} is not signed")
        if version != VERSION:
            raise SignatureError(f"the {what}'s signature is of version {version[:8]!r}, known: {VERSION}")
        given = signature.encode("utf-8", "replace")
        # All secrets are tried, each in constant time: the time taken tells nothing about which one fits.
        fits = [hmac.compare_digest(self._sign(key, *lines).encode(), given) for key in self._keys]
        if not any(fits):
            raise SignatureError(
                f"the {what}'s signature does not fit: another secret, or changed on its way"
            )


def _request_lines(head: SignedHead, body: bytes) -> tuple[str, ...]:
    return (VERSION, "request", *head, hashlib.sha256(body).hexdigest())


def _reply_lines(request_signature: str, status: int, body: bytes) -> tuple[str, ...]:
    return (VERSION, "reply", str(status), request_signature, hashlib.sha256(body).hexdigest())


def _joined(lines: tuple[str, ...]) -> bytes:
    # A newline inside a line could move the borders between two: the same bytes would then sign two requests.
    if any("\n" in line for line in lines):
        raise SignatureError("a signed part contains a line break")
    return "\n".join(lines).encode("utf-8", "surrogatepass")
