"""Fetching files from a Maven repository: checked against their hashes, several side by side."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import certifi
from maven_artifact import Downloader

from outbox_relay.downloads.errors import StackError
from outbox_relay.downloads.jar_list import Jar

ATTEMPTS = 3
PARALLEL = 8
TIMEOUT = 60.0
"""Seconds without a byte after which a download is tried again."""


def download(
    jars: Sequence[Jar],
    target: Path,
    progress: Callable[[int, int], None],
    *,
    instead: str = "a broker of your own in OUTBOX_BOOTSTRAP_SERVERS",
) -> None:
    """Fetch jars into a directory; `progress` gets (jars done, jars in all).

    Raises StackError when one cannot be fetched or is not the one that was pinned; it names what can be given
    `instead`.
    """
    base = repository()
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="jars") as pool:
        work = [pool.submit(_fetch, base, jar, target, instead) for jar in jars]
        try:
            for done, item in enumerate(as_completed(work), start=1):
                item.result()
                progress(done, len(jars))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def repository() -> str:
    """Return where jars come from: $OUTBOX_MAVEN_REPOSITORY (a mirror), else the default of the Maven client."""
    given = os.environ.get("OUTBOX_MAVEN_REPOSITORY")
    base: str = given or Downloader().resolver.base
    return base.rstrip("/")


def _fetch(base: str, jar: Jar, target: Path, instead: str) -> None:
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
        f"{url} could not be fetched: {problem}. A mirror can be named in OUTBOX_MAVEN_REPOSITORY, {instead}"
    )


def _read(url: str) -> bytes:
    """Read a URL, trusting the machine's certificates, and certifi's where the machine has none."""
    if not url.startswith(("https://", "http://", "file://")):
        scheme = url.partition("://")[0]
        raise StackError(
            f"OUTBOX_MAVEN_REPOSITORY must start with https://, http:// or file://, not {scheme!r}"
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
