"""Searches a model: every state that its steps reach, and the shortest schedule to each violation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class ModelState(Hashable, Protocol):
    """A state of a model; `wrong`: the promises that it breaks."""

    @property
    def wrong(self) -> Iterable[str]: ...


S = TypeVar("S", bound=ModelState)


@dataclass(slots=True)
class Found:
    """What a search found: how many states, and for each violation the shortest schedule that shows it."""

    states: int = 0
    ends: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)


def explore(
    first: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    missing: Callable[[S], Iterable[str]],
    reduced: Callable[[S], S] = lambda state: state,
    until: str = "",
) -> Found:
    """Visit every reachable state, nearest first.

    Args:
        first: where it begins.
        steps: what can happen in a state: the name of each step, and the state after it.
        missing: what is wrong with a state in which nothing more happens.
        reduced: gives states that differ only in what can have no effect the same form.
        until: end once this is found wrong; what else is reachable is not looked at.
    """
    came: dict[S, tuple[S, str] | None] = {first: None}
    todo, found = deque([first]), Found()

    def way(state: S) -> list[str]:
        taken = []
        while (before := came[state]) is not None:
            state, step = before
            taken.append(step)
        return taken[::-1]

    while todo:
        state = todo.popleft()
        found.states += 1
        for name in state.wrong:
            found.wrong.setdefault(name, way(state))
        following = [*steps(state)]
        if not following and not [*state.wrong]:
            found.ends += 1
            for name in missing(state):
                found.wrong.setdefault(name, way(state))
        if until in found.wrong:
            break
        for step, following_state in following:
            after = reduced(following_state)
            if after not in came:
                came[after] = (state, step)
                todo.append(after)
    return found
