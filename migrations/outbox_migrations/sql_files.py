"""Collects packaged SQL files as scripts, so that migrations are SQL that people can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources

from alembic import op

_COLLECTED: ContextVar[list[str] | None] = ContextVar("scripts of a migration", default=None)


def text(name: str) -> str:
    """Return the file `sql/<name>` of this package."""
    return (resources.files("outbox_migrations") / "sql" / name).read_text(encoding="utf-8")


@contextmanager
def collected() -> Iterator[list[str]]:
    """Collect what migrations `run` meanwhile."""
    scripts: list[str] = []
    token = _COLLECTED.set(scripts)
    try:
        yield scripts
    finally:
        _COLLECTED.reset(token)


def run(name: str) -> None:
    """Collect the file, or print it where alembic prints a migration.

    It is not run by alembic: its proxies `op` and `context` are global, and the caller may be a migration of the
    host's, whose proxies would be gone afterwards.
    """
    scripts = _COLLECTED.get()
    if scripts is None:
        op.get_context().impl.static_output(text(name))
    else:
        scripts.append(text(name))
