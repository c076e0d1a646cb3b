"""The one exception of the local stack, so that commands and tests can tell its refusals from defects."""

from __future__ import annotations

from outbox_relay.errors import OperatorError


class StackError(OperatorError):
    """The stack cannot do what was asked; the text says what was wrong and what to do about it."""
