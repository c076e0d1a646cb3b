"""The base of errors that a user or operator can repair."""

from __future__ import annotations


class OperatorError(Exception):
    """A refusal that states what is wrong and what to do; commands print it and end with 1."""


class OptionError(OperatorError):
    """The value of an option or argument is wrong; commands print it and end with 2."""
