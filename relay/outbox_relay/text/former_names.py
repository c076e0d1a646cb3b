"""Commands that have another name now: hints of the database's functions, and people, may still give the former one."""

from __future__ import annotations

import re

FORMER = {
    "message dead": "holds dead",
    "message skip": "holds skip",
    "message retry": "holds release",
    "lane ls": "holds ls",
    "lane retry": "holds release --all",
}
"""By the name that it had: what a command is called now."""
GROUPS = frozenset({"lane"})
"""Groups of which no command is left."""


def with_present_names(text: str) -> str:
    """Replace the former names of commands in a text; a relay of this version takes up what a lane had stopped at."""
    text = re.sub(r"outbox lane retry \d+", "outbox relay run", text)
    for former, present in FORMER.items():
        text = text.replace(f"outbox {former}", f"outbox {present}")
    return text


def absent(group: str) -> dict[str, str]:
    """Return, by each former command of a group, what it is called now."""
    return {
        former.removeprefix(f"{group} "): f"it is now `outbox {present}`"
        for former, present in FORMER.items()
        if former.startswith(f"{group} ")
    }


def told(words: list[str]) -> str:
    """Return what a command of a group that is gone is called now."""
    given = " ".join(words)
    present = next((present for former, present in FORMER.items() if given.startswith(former)), None)
    now = f"it is now `outbox {present}`" if present else f"see: outbox {FORMER['lane ls'].split()[0]} --help"
    return f"No such command {' '.join(words[:2])!r}: {now}"
