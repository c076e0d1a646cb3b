"""What can be wrong about a topic."""

from __future__ import annotations

from outbox_relay.text.errors import OperatorError


class TopicError(OperatorError):
    """A topic cannot be made, registered or changed as asked; the text states why and what to do."""
