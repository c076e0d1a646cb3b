"""Who may use the console: hosts, tokens, identities of a proxy, and what a form has to prove. No I/O.

A browser runs pages of strangers next to ours. So a request has to name a host that is ours (a name that a stranger has
pointed at this machine is refused), and a form has to bring a value that only our own pages hold. The cookie is signed
by a key of this process: nothing is stored, and a restart ends all sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

SESSION_S = 12 * 3600.0
SHORTEST_TOKEN = 16
"""Characters: one that is shorter can be guessed."""
LONGEST_NAME = 100
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class RefusedError(Exception):
    """The request is refused, with an HTTP status and the reason for people."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True)
class AccessOptions:
    """Who may come; nothing given: all who reach the port, which is then one of loopback."""

    token: str | None = None
    identity_header: str | None = None
    proxies: tuple[IPNetwork, ...] = ()
    """From where the identity header is believed; others are refused."""
    hostnames: frozenset[str] = frozenset()
    """Names of this console, besides localhost and addresses."""


@dataclass(frozen=True)
class Visitor:
    """Who makes a request; `cookie` is to be set where it is new, `csrf` belongs into each form."""

    name: str
    cookie: str
    csrf: str
    expires_at: float
    is_new: bool = False


class Access:
    """Decides about each request.

    Args:
        options: who may come.
        user: who acts where the request names no person.
        clock: seconds since 1970.
    """

    def __init__(self, options: AccessOptions, user: str, *, clock: Callable[[], float] = time.time) -> None:
        self._options, self._user, self._clock = options, user, clock
        self._key = secrets.token_bytes(32)

    @property
    def needs_token(self) -> bool:
        """Whether people have to log in by the token."""
        return self._options.token is not None

    def require_host(self, host: str) -> None:
        """Refuse a host that a stranger's name may be.

        Raises:
            RefusedError: it is neither an address, nor localhost, nor one of our names.
        """
        name = (urlsplit(f"//{host}").hostname or "") if host else ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            if name not in {"localhost", *self._options.hostnames}:
                raise RefusedError(
                    421,
                    f"{name or 'no host'} is not a name of this console: a stranger's page may have sent the browser "
                    f"here. Start it with: outbox console --hostname {name or 'NAME'}",
                ) from None

    def visitor(self, peer: str, headers: Mapping[str, str], cookie: str | None) -> Visitor | None:
        """Return who makes a request; None: they have to log in.

        Args:
            peer: the address that the connection comes from.
            headers: of the request; their names in small letters.
            cookie: as the browser sent it.

        Raises:
            RefusedError: it does not come through the proxy that identifies people.
        """
        header = self._options.identity_header
        if header is not None:
            name = self._identified(peer, headers.get(header.lower(), ""))
            known = self._read(cookie)
            return known if known is not None and known.name == name else self._session(name)
        known = self._read(cookie)
        if known is None and not self.needs_token:
            return self._session(self._user)
        return known

    def has_ended(self, visitor: Visitor) -> bool:
        """Whether their session is over, for a page that has been open since before."""
        return self._clock() >= visitor.expires_at

    def log_in(self, token: str, name: str) -> Visitor:
        """Begin a session of somebody who has the token; the name is for the audit, and as they gave it.

        Raises:
            RefusedError: the token is another one, or the name cannot be written down.
        """
        expected = self._options.token or secrets.token_hex()
        if not hmac.compare_digest(token.encode(), expected.encode()):
            raise RefusedError(403, "that is not the token")
        return self._session(_checked(name))

    def require_own_form(self, visitor: Visitor, headers: Mapping[str, str], csrf: str) -> None:
        """Refuse what another site's page has sent.

        Raises:
            RefusedError: it comes from elsewhere, or has not the value of a form of this session.
        """
        self.require_own_origin(headers)
        if not hmac.compare_digest(csrf.encode(), visitor.csrf.encode()):
            raise RefusedError(403, "the form is not of this session: load its page again")

    def require_own_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse a form that a page of another site has sent.

        Raises:
            RefusedError: the browser states another origin.
        """
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
        if foreign or headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise RefusedError(403, "the form comes from another site")

    def _identified(self, peer: str, name: str) -> str:
        address = ipaddress.ip_address(peer)
        if not any(address in network for network in self._options.proxies):
            raise RefusedError(
                403, f"{peer} is not a proxy of this console (--proxy): it may not name people"
            )
        return _checked(name)

    def _session(self, name: str) -> Visitor:
        expires_at = self._clock() + SESSION_S
        said = base64.urlsafe_b64encode(name.encode()).decode()
        content = f"{expires_at:.0f}.{secrets.token_hex(8)}.{said}"
        cookie = f"{content}.{self._signed('cookie', content)}"
        return Visitor(name, cookie, self._signed("form", cookie), round(expires_at), is_new=True)

    def _read(self, cookie: str | None) -> Visitor | None:
        content, _, signature = (cookie or "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signed("cookie", content).encode()):
            return None
        expires_at, _, name = content.split(".")
        if float(expires_at) <= self._clock():
            return None
        said = base64.urlsafe_b64decode(name).decode()
        return Visitor(said, cookie or "", self._signed("form", cookie or ""), float(expires_at))

    def _signed(self, purpose: str, content: str) -> str:
        return hmac.new(self._key, f"{purpose}:{content}".encode(), hashlib.sha256).hexdigest()


def _checked(name: str) -> str:
    """Require a name that can stand in an audit."""
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise RefusedError(
            403, f"a name of 1 to {LONGEST_NAME} printable characters is needed, for the audit"
        )
    return name
