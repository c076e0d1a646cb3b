"""The one exception of the local stack, so that commands and tests can distinguish its refusals from defects."""

from __future__ import annotations

from outbox_relay.text.errors import OperatorError


class StackError(OperatorError):
    """The stack cannot do what was asked; the text states what was wrong and what to do about it."""
