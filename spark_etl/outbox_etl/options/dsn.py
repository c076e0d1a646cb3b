"""A PostgreSQL DSN as libpq takes it, turned into what the JDBC driver takes; the password stays out of the URL."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from outbox_etl.errors import SettingsError

# libpq's names and the JDBC driver's.
SAME = ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")
NAMES = {name: name for name in SAME} | {
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "target_session_attrs": "targetServerType",
    "channel_binding": "channelBinding",
}
SERVER_TYPES = {
    "any": "any",
    "primary": "primary",
    "read-write": "primary",
    "standby": "secondary",
    "read-only": "secondary",
    "prefer-standby": "preferSecondary",
}


@dataclass(frozen=True, slots=True)
class Database:
    """A database as JDBC names it."""

    url: str
    user: str
    password: str = field(default="", repr=False)
    conninfo: str = field(default="", repr=False)
    """The same as libpq takes it, with the password."""

    def __str__(self) -> str:
        """Name the database without its secrets."""
        return self.url.partition("?")[0].removeprefix("jdbc:")


def parse(dsn: str) -> Database:
    """Read a DSN: a URL, or key=value words. PGUSER and PGPASSWORD fill in what it leaves out.

    Raises:
        SettingsError: it cannot be read, or contains what JDBC does not support. The text is not repeated, because it
            may hold a password.
    """
    words = _url(dsn) if dsn.startswith(("postgresql://", "postgres://")) else _words(dsn)
    host = words.pop("host", "") or words.pop("hostaddr", "") or os.environ.get("PGHOST", "localhost")
    words.pop("hostaddr", None)
    port = words.pop("port", "") or os.environ.get("PGPORT", "5432")
    user = words.pop("user", "") or os.environ.get("PGUSER", "") or os.environ.get("USER", "postgres")
    password = words.pop("password", "") or os.environ.get("PGPASSWORD", "")
    database = words.pop("dbname", "") or os.environ.get("PGDATABASE", "") or user
    if host.startswith(("/", "@")):
        raise SettingsError("--dsn names a Unix socket, which JDBC cannot use: give a host and a port")
    ports = port.split(",")
    if not all(number.isdecimal() and 0 < int(number) < 65536 for number in ports):
        raise SettingsError(f"--dsn names the port {port!r}: expected 1 to 65535")
    hosts = host.split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        raise SettingsError(
            f"--dsn names {len(hosts)} hosts and {len(ports)} ports: give one port, or one for each host"
        )
    options = {"ApplicationName": "outbox-etl", **_options(words)}
    places = ",".join(
        f"{f'[{name}]' if ':' in name else name}:{number}" for name, number in zip(hosts, ports, strict=True)
    )
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    named = {"host": host, "port": ",".join(ports), "dbname": database, "user": user, "password": password}
    # (JDBC waits as long, and asks for UTF-8, by itself)
    words = {"application_name": "outbox-etl", "connect_timeout": "10", **words, "client_encoding": "UTF8"}
    url = f"jdbc:postgresql://{places}/{quote(database, safe='')}?{query}"
    return Database(url, user, password, _conninfo(words | named))


def _conninfo(words: Mapping[str, str]) -> str:
    quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in words.items() if value}
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())


def _options(words: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(words) - set(NAMES))
    if unknown:
        raise SettingsError(
            f"--dsn contains {', '.join(unknown)}, which JDBC does not support: use {', '.join(NAMES)}"
        )
    options = {NAMES[name]: value for name, value in words.items()}
    if "targetServerType" in options:
        kind = options["targetServerType"]
        if kind not in SERVER_TYPES:
            raise SettingsError(
                f"--dsn contains target_session_attrs={kind}: use one of {', '.join(SERVER_TYPES)}"
            )
        options["targetServerType"] = SERVER_TYPES[kind]
    return options


def _url(dsn: str) -> dict[str, str]:
    try:
        parts = urlsplit(dsn)
        login, _, places = parts.netloc.rpartition("@")
        hosts, ports = zip(*(_place(place) for place in places.split(",")), strict=True)
    except ValueError:
        raise SettingsError(
            "--dsn is not a valid URL: expected postgresql://user:password@host:5432/database"
        ) from None
    user, _, password = login.partition(":")
    words = {
        "host": ",".join(hosts),
        "port": ",".join(filter(None, ports)),
        "user": user,
        "password": password,
    }
    words["dbname"] = parts.path.lstrip("/")
    found = {name: unquote(value) for name, value in words.items()} | dict(parse_qsl(parts.query))
    return {name: value for name, value in found.items() if value}


def _place(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.lstrip(":")
    host, _, port = text.partition(":")
    return host, port


def _words(dsn: str) -> dict[str, str]:
    try:
        pairs = [word.partition("=") for word in shlex.split(dsn.replace(" = ", "="))]
    except ValueError:
        pairs = [("", "", "")]
    if not all(name and mark for name, mark, _ in pairs):
        raise SettingsError(
            "--dsn is not a valid DSN: expected a URL, or words as host=… port=… dbname=… user=…"
        )
    return {name: value for name, _, value in pairs if value}
