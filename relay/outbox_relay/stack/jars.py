"""Kafka's jars: a pinned list, each checked against its hash, fetched side by side."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import certifi
from maven_artifact import Downloader

from outbox_relay.stack.cache import cached
from outbox_relay.stack.errors import StackError

KAFKA_VERSION = "4.4.0"
ATTEMPTS = 3
PARALLEL = 8
TIMEOUT = 60.0
"""Seconds without a byte after which a download is tried again."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the pinned list."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file, as every Maven repository calls it."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The place of the file in every Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


def pinned() -> list[Jar]:
    """Read the list of jars that a broker needs."""
    lines = (files("outbox_relay.stack") / "kafka-jars.txt").read_text().splitlines()
    rows = (line.replace(":", " ").split() for line in lines if line and not line.startswith("#"))
    return [Jar(group, artifact, version, sha256) for group, artifact, version, sha256 in rows]


def repository() -> str:
    """Say where jars come from: $OUTBOX_MAVEN_REPOSITORY (a mirror), else the default of the Maven client."""
    given = os.environ.get("OUTBOX_MAVEN_REPOSITORY")
    base: str = given or Downloader().resolver.base
    return base.rstrip("/")


def kafka_jars(progress: Callable[[int, int], None]) -> Path:
    """Fetch the broker's jars once (43 MB) and answer their directory; `progress` is told (jars done, jars in all).

    Raises StackError when one cannot be fetched or is not the one that was pinned.
    """

    def fill(target: Path) -> None:
        jars, base = pinned(), repository()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="jars") as pool:
            work = [pool.submit(_fetch, base, jar, target) for jar in jars]
            try:
                for done, item in enumerate(as_completed(work), start=1):
                    item.result()
                    progress(done, len(jars))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    return cached(f"kafka-{KAFKA_VERSION}-{_fingerprint()}", fill)


def _fingerprint() -> str:
    """Tell one pinned list from another, so that a new list never meets an old list's directory."""
    return hashlib.sha256(repr(pinned()).encode()).hexdigest()[:8]


def _fetch(base: str, jar: Jar, target: Path) -> None:
    url, problem = f"{base}/{jar.path}", ""
    for _ in range(ATTEMPTS):
        try:
            content = _read(url)
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
            continue
        found = hashlib.sha256(content).hexdigest()
        if found == jar.sha256:
            (target / jar.file_name).write_bytes(content)
            return
        problem = f"its sha256 is {found}, pinned is {jar.sha256}"
    raise StackError(
        f"{url} could not be fetched: {problem}. A mirror can be named in OUTBOX_MAVEN_REPOSITORY, "
        "a broker of your own in OUTBOX_BOOTSTRAP_SERVERS"
    )


def _read(url: str) -> bytes:
    """Read a URL, trusting the machine's certificates, and certifi's where the machine has none."""
    if not url.startswith(("https://", "http://", "file://")):
        raise StackError(
            f"OUTBOX_MAVEN_REPOSITORY must start with https://, http:// or file://, not {url.split('://', maxsplit=1)[0]!r}"
        )
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 (the scheme is checked above)
            content: bytes = answer.read()
            return content
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        trust = ssl.create_default_context(cafile=certifi.where())
        with urllib.request.urlopen(url, timeout=TIMEOUT, context=trust) as answer:  # noqa: S310
            content = answer.read()
            return content
