"""The one exception of the local stack, so that the command line can tell our refusals from defects."""

from __future__ import annotations


class StackError(Exception):
    """The stack cannot do what was asked; the text says what was wrong and what to do about it."""
