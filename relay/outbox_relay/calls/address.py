"""Where an HTTP request goes to: the parts of a URL, with its host in one form."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")
DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class HttpCallback:
    """Where a group is asked, or alarms are sent, over HTTP: the parts of the URL."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query as they are sent."""
    path: str
    """The path, percent-decoded, as it is signed."""
    query: str

    @property
    def place(self) -> str:
        """Host and port for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_name(name: str) -> str:
    """Bring a host's name into the one form in which names are compared: lower case, ASCII, no dot at the end.

    Raises:
        ValueError: it is empty or no name.
    """
    name = name.strip("[]").rstrip(".").lower()
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    if not name or UNPRINTABLE.search(name):
        raise ValueError("is not a host name")
    return name
