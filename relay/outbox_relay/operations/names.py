"""Names of topics and groups that a command is given: a typing error must not pass for an empty result.

A topic has messages and a producer group sends before anybody registers them, so no list is complete. Commands that
search ask here when they have found nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/names.sql")


class UnknownNameError(OperatorError):
    """Nothing in the database has this name; the text names the nearest ones."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest names, or list a few when none is near."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3)
    if near:
        return f"Did you mean {' or '.join(repr(one) for one in near)}?"
    if not names:
        return "None exists yet."
    return f"There are: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}."


def require_known(
    conn: psycopg.Connection[Any],
    *,
    topic: str | None = None,
    producer_group: str | None = None,
    consumer_group: str | None = None,
) -> None:
    """Refuse names that nothing in the database has; None is not checked.

    Raises:
        UnknownNameError: with the nearest names, and the command that lists all.
    """
    for kind, name, listed_by in (
        ("topic", topic, "outbox topic ls"),
        ("producer_group", producer_group, "outbox group ls"),
        ("consumer_group", consumer_group, "outbox consumers ls"),
    ):
        if name is None:
            continue
        known = {found for (found,) in conn.execute(STATEMENTS[kind]).fetchall()}
        if name not in known:
            raise UnknownNameError(
                f"there is no {kind.replace('_', ' ')} {name!r}. {did_you_mean(name, known)}\n"
                f"list them: {listed_by}"
            )
