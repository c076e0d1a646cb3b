"""Runs a packaged SQL file as one script, so that migrations are SQL that people can read."""

from __future__ import annotations

from importlib import resources

from alembic import context, op


def text(name: str) -> str:
    """Return the file `sql/<name>` of this package."""
    return (resources.files("outbox_migrations") / "sql" / name).read_text(encoding="utf-8")


def run(name: str) -> None:
    """Execute the file in the migration's transaction, or print it in offline mode.

    The driver's own cursor is used: it sends the script as it is (a simple query may hold many statements),
    while SQLAlchemy's text() would take every `:name` in it for a parameter.
    """
    script = text(name)
    if context.is_offline_mode():
        op.get_context().impl.static_output(script)
        return
    driver = op.get_bind().connection.cursor()
    try:
        driver.execute(script)
    finally:
        driver.close()
