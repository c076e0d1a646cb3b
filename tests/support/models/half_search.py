"""Searches the model of half messages: every state and every way there, or every complete schedule of a small one.

Run as `python -m tests.support.models.half_search` it prints a table; with `--trace` the shortest schedule of each
violation.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.models.half_model import State, Step, Variant, start
from tests.support.models.half_steps import Next, steps, verdict
from tests.support.models.half_variants import BROKEN, SOUND

Schedule = tuple[Next, ...]


@dataclass(slots=True)
class Found:
    """What a search met: how many states, and for each violation the shortest schedule that shows it."""

    states: int = 0
    transitions: int = 0
    ends: int = 0
    wrong: dict[str, tuple[Step, ...]] = field(default_factory=dict)


def search(v: Variant) -> Found:
    """Visit every reachable state, nearest first."""
    first = start(v)
    came: dict[State, tuple[State, Step] | None] = {first: None}
    todo, found = deque([first]), Found()

    def way(state: State) -> tuple[Step, ...]:
        taken: list[Step] = []
        while (before := came[state]) is not None:
            state, step = before
            taken.append(step)
        return tuple(reversed(taken))

    while todo:
        state = todo.popleft()
        found.states += 1
        following = [*steps(v, state)]
        found.transitions += len(following)
        found.ends += not following
        for name in state.wrong if following else verdict(v, state):
            if name not in found.wrong:
                found.wrong[name] = way(state)
        for step, after in following:
            if after not in came:
                came[after] = (state, step)
                todo.append(after)
    return found


def schedules(v: Variant) -> Iterator[Schedule]:
    """Yield every complete schedule: each step with the state that it leads to."""

    def walk(state: State, taken: Schedule) -> Iterator[Schedule]:
        following = [*steps(v, state)]
        if not following:
            yield taken
        for step, after in following:
            yield from walk(after, (*taken, (step, after)))

    yield from walk(start(v), ())


def covering(v: Variant) -> Iterator[Schedule]:
    """Yield complete schedules that take every step of every reachable state once at least."""
    first = start(v)
    to: dict[State, Schedule] = {first: ()}
    todo = deque([first])
    while todo:
        state = todo.popleft()
        for step, after in steps(v, state):
            if after not in to:
                to[after] = (*to[state], (step, after))
                todo.append(after)
    taken: set[tuple[State, Step]] = set()

    def on(state: State) -> Iterator[Next]:
        """Go on to an end, by steps not taken before where there are some."""
        while following := [*steps(v, state)]:
            fresh = [one for one in following if (state, one[0]) not in taken]
            step, after = (fresh or following)[0]
            taken.add((state, step))
            yield step, after
            state = after

    for state, way in to.items():
        for step, after in steps(v, state):
            if (state, step) not in taken:
                taken.add((state, step))
                yield (*way, (step, after), *on(after))


def table(variants: dict[str, Variant], *, trace: bool = False) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'states':>9} {'steps':>9} {'ends':>7}  variant"
    total = 0
    for name, variant in variants.items():
        found = search(variant)
        total += found.states
        result = ", ".join(sorted(found.wrong)) or "ok"
        yield f"{found.states:9,} {found.transitions:9,} {found.ends:7,}  {name}: {result}"
        if trace:
            for wrong, way in sorted(found.wrong.items()):
                yield f"{'':29}{wrong}: {'; '.join(map(str, way))}"
    yield f"{total:9,} states in all"


if __name__ == "__main__":
    everything = SOUND | {name: variant for name, (variant, _) in BROKEN.items()}
    for line in table(everything, trace="--trace" in sys.argv[1:]):
        sys.stdout.write(line + "\n")
