"""Removes passwords from texts that people or log stores may see; needs no driver."""

from __future__ import annotations

import re

SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})
MASK = "***"

_URL_SECRET = re.compile(r"(://[^:/?#\s]*:)\S*(@)")
_PAIR_SECRET = re.compile(
    rf"(?i)\b((?:{'|'.join(sorted(SECRETS))}|sasl\.password|ssl\.key\.password)[\"']?\s*[=:]\s*)"
    r"('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&,;]+)"
)


def mask_text(text: str) -> str:
    """Replace what looks like a password in any text, such as a driver's exception, by ***."""
    return _PAIR_SECRET.sub(rf"\1{MASK}", _URL_SECRET.sub(rf"\1{MASK}\2", text))
