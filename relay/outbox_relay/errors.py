"""The base of every refusal that a user can repair, so that commands can tell refusals from defects."""

from __future__ import annotations


class OperatorError(Exception):
    """What was asked cannot be done; the text says what was wrong and what to do about it."""
