"""What can be wrong about a producer group."""

from __future__ import annotations

from outbox_relay.text.errors import OperatorError


class GroupError(OperatorError):
    """A producer group cannot be registered or changed as asked; the text states why and what to do."""
