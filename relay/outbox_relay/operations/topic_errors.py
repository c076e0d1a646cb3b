"""What can be wrong about a topic."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from outbox_relay.text.errors import OperatorError


class TopicError(OperatorError):
    """A topic cannot be made, registered or changed as asked; the text states why and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest names, or list a few when none is near."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3)
    if near:
        return f"Did you mean {' or '.join(repr(one) for one in near)}?"
    if not names:
        return "None exists yet."
    return f"There are: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}."
