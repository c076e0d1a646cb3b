"""An act: its form, the line of the command that does the same, and the parameters of a link to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from shlex import join

from outbox_relay.database.connections import Connection
from outbox_relay.operations import filters
from outbox_relay.operations.decide import DecisionResult
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import printable

Params = Mapping[str, str]
LONGEST_PARAM = 2000


class ParamsError(OperatorError):
    """A link to an act is not one of ours."""


@dataclass(frozen=True)
class ActPreview:
    """What an act would change, in sentences, and values that its form brings back."""

    lines: Sequence[str]
    fields: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of an act; not done: it was refused, or somebody else was first."""

    done: bool
    lines: Sequence[str]


@dataclass(frozen=True)
class Act:
    """Something to do.

    Attributes:
        title: what it does, as the heading of its form.
        button: the same in a word or two.
        params: the names of what a link to it may state.
        line: the command that does the same.
        tell: reads what it is about.
        run: does it; the reason is checked, or None where the operation keeps none.
        keeps_reason: whether the database keeps the reason; the console's log has it always.
    """

    title: str
    button: str
    params: Sequence[str]
    line: Callable[[Params, str], Sequence[str]]
    tell: Callable[[Connection, Params], ActPreview]
    run: Callable[[Connection, Params, str], Outcome]
    keeps_reason: bool = True

    def chosen(self, given: Params) -> dict[str, str]:
        """Return the parameters of this act.

        Raises:
            ParamsError: one is absurdly long.
        """
        found = {name: given[name] for name in self.params if given.get(name)}
        if any(len(value) > LONGEST_PARAM for value in found.values()):
            raise ParamsError("the link is longer than any of the console's")
        return found

    def command(self, params: Params, reason: str) -> str:
        """Return the line for a terminal."""
        return join(["outbox", *(printable(word) for word in self.line(params, reason))])


def number(params: Params, name: str = "id") -> int:
    """Read an id.

    Raises:
        ParamsError: it is something else.
    """
    text = params.get(name, "")
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= filters.LARGEST_ID:
        raise ParamsError(f"{printable(text)!r} is not an id; go back to the list and follow its link")
    return int(text)


def text(params: Params, name: str) -> str:
    """Read a text that has to be there.

    Raises:
        ParamsError: it is not.
    """
    value = params.get(name, "")
    if not value:
        raise ParamsError(f"the link states no {name}; go back to the list and follow its link")
    return value


def read_time(params: Params, name: str) -> datetime | None:
    """Read a time that may be there.

    Raises:
        ParamsError: it cannot be read.
    """
    try:
        return datetime.fromisoformat(params[name]) if params.get(name) else None
    except ValueError:
        raise ParamsError(f"{printable(params[name])!r} is not a time") from None


def decided(result: DecisionResult) -> Outcome:
    """Return what became of one message, as the commands state it."""
    return Outcome(not result.failed, [f"Message {result.half['id']} {result.text}"])
