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
# Settings of librdkafka, Spark and Iceberg: ssl.key.pem, sasl.oauthbearer.client.secret, fs.s3a.secret.key
_SETTING_SECRET = re.compile(
    r"(?i)(?<![\w.-])([\w.-]*(?:password|passphrase|secret|(?:secret|access|private)[._-]key|[.]pem|token|jaas[.]config"
    r"|oauthbearer[.]config|auth[.]user[.]info)(?:\s*=\s*|[\"']\s*[:=]\s*))"
    r"('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&,;]+)"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace what may be a password in any text, such as a driver's exception, by ***.

    Args:
        text: The text to show.
        secrets: Passwords that are known; they are replaced wherever they are. An empty one is ignored.
    """
    # The longest first: a shorter one may be a part of it.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _URL_SECRET.sub(rf"\1{MASK}\2", _PRIVATE_KEY.sub(MASK, text))
    return _SETTING_SECRET.sub(rf"\1{MASK}", _PAIR_SECRET.sub(rf"\1{MASK}", text))


def mask_url(url: str) -> str:
    """Replace the login and the query of a URL by ***: either may hold a secret."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
    except ValueError:
        return "(unreadable URL)"
    login = f"{MASK}@" if host[1] else ""
    return urlunsplit((parts.scheme, f"{login}{host[2]}", parts.path, MASK if parts.query else "", ""))
