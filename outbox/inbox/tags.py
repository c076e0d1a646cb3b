"""Tag expressions: which messages of a topic a consumer group subscribes to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from outbox.errors import InvalidSubscriptionError
from outbox.inbox.messages import HeaderValue, tags_of
from outbox.validation import exact

_TAG = re.compile(r"[^|\s\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class TagExpression:
    """A parsed expression: `*` is every message, `a || b` is a message that has one of these tags.

    A message without tags is matched by `*` only.
    """

    tags: frozenset[str] | None
    """None: every message."""

    @classmethod
    def parse(cls, text: str) -> TagExpression:
        """Parse an expression.

        Raises:
            InvalidSubscriptionError: The text is not `*` and not a list of tags that are joined by `||`.
        """
        if not isinstance(text, str):
            raise InvalidSubscriptionError(f"tag expression: {text!r} is not a text; {_ALLOWED}")
        text = exact(text)
        if text.strip() == "*":
            return cls(None)
        tags = [part.strip() for part in text.split("||")]
        for tag in tags:
            if tag == "*" or not _TAG.fullmatch(tag):
                raise InvalidSubscriptionError(f"tag expression: {text!r} has the part {tag!r}; {_ALLOWED}")
        return cls(frozenset(tags))

    def matches(self, tags: Iterable[str]) -> bool:
        """Return whether a message with these tags is subscribed to."""
        return self.tags is None or not self.tags.isdisjoint(tags)

    def selects(self, headers: Iterable[tuple[str, HeaderValue]]) -> bool:
        """Return whether a message with these headers is subscribed to."""
        return self.matches(tags_of(headers))

    def __str__(self) -> str:
        return "*" if self.tags is None else " || ".join(sorted(self.tags))


_ALLOWED = "allowed: '*', or tags without white space that are joined by '||', such as 'paid || sent'"
EVERYTHING = TagExpression(None)
"""What `*` means."""
