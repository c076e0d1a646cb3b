"""Variants of the core and of its driver without one safeguard each. The search has to catch every one of them.

A variant of the core changes the very sources that the relay will run: a text of a file becomes another one.
A variant of the driver is a flag of the world: a statement, or an operator's command, does less than it has to.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from outbox_relay.publisher import core as product
from tests.support.core_search.directed import SCRIPTS
from tests.support.core_search.schedules import run
from tests.support.searching import Edit, changed

LIST = Path(__file__).with_name("variants.toml")
FILES = ("values", "memory", "topics", "sources", "streams", "transactions", "holds", "read_back", "core")
"""The modules of the core, each after those that it imports."""
SEED = "variants"


class Variant(NamedTuple):
    """One safeguard less. A script catches it, or the schedule of SEED that `theme` and `schedule` name."""

    name: str
    rule: str
    theme: str = ""
    promise: str = ""
    """The promise that it has to break, or how that begins; "" for any."""
    schedule: int = 1
    script: str = ""
    edits: tuple[Edit, ...] = ()
    flags: frozenset[str] = frozenset()


def listed() -> tuple[Variant, ...]:
    """Read the list."""
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["variant"]
    return tuple(
        Variant(
            **{name: value for name, value in row.items() if name not in ("edit", "flags")},
            edits=tuple(Edit(**edit) for edit in row.get("edit", ())),
            flags=frozenset(row.get("flags", ())),
        )
        for row in rows
    )


VARIANTS = listed()


@functools.cache
def core_with(edits: tuple[Edit, ...]) -> Any:
    """Return the core of changed sources.

    Raises:
        LookupError: A file does not have a text once.
    """
    return changed(product, FILES, edits)["core"].Core


def faults_of(variant: Variant, number: int, *, seed: str = SEED) -> set[str]:
    """Run one schedule of a variant. Return what it broke; one that merely crashes broke nothing."""
    core = core_with(variant.edits)
    if variant.script:
        return set() if SCRIPTS[variant.script](core, variant.flags) else {variant.script}
    try:
        faults = run(seed, number, theme=variant.theme, core=core, flags=variant.flags).faults
        return {fault for fault in faults if fault.startswith(variant.promise)}
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        return set()


def catching(variant: Variant, most: int, *, seed: str = SEED) -> int | None:
    """Return the number of the first schedule that catches a variant, at most so many."""
    return next((number for number in range(1, most + 1) if faults_of(variant, number, seed=seed)), None)
