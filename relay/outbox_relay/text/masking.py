"""Removes passwords from texts that people or log stores may see; needs no driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})
MASK = "***"

_URL_SECRET = re.compile(r"(://[^:/?#\s]*:)\S*(@)")
_PAIR_SECRET = re.compile(
    rf"(?i)\b((?:{'|'.join(sorted(SECRETS))}|sasl\.password|ssl\.key\.password)[\"']?\s*[=:]\s*)"
    r"('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&,;]+)"
)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace what may be a password in any text, such as a driver's exception, by ***.

    Args:
        text: The text to show.
        secrets: Passwords that are known; they are replaced wherever they are. An empty one is ignored.
    """
    # The longest first: a shorter one may be a part of it.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _PAIR_SECRET.sub(rf"\1{MASK}", _URL_SECRET.sub(rf"\1{MASK}\2", text))


def mask_url(url: str) -> str:
    """Replace the login and the query of a URL by ***: either may hold a secret."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
    except ValueError:
        return "(unreadable URL)"
    login = f"{MASK}@" if host[1] else ""
    return urlunsplit((parts.scheme, f"{login}{host[2]}", parts.path, MASK if parts.query else "", ""))
