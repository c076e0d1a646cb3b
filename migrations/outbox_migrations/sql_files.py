"""Collects packaged SQL files as scripts, so that migrations are SQL that people can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources

_COLLECTED: ContextVar[list[str]] = ContextVar("scripts of a migration")


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
    """Collect the file.

    It is not run by alembic: its proxies `op` and `context` are global, and the caller may be a migration of the
    host's, whose proxies would be gone afterwards.
    """
    _COLLECTED.get().append(text(name))
