"""What may be written to a terminal: text without control characters, whatever its author.

Ids, topics and keys of messages are any producer's words, and an escape sequence among them would be obeyed by the
terminal on which a finding is read.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Write what does not print as escapes (`\\x1b`), except for the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii")
        for each in text
    )
