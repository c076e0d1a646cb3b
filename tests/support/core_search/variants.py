"""Variants of the core and of its driver without one safeguard each. The search has to catch every one of them.

A variant of the core changes the very sources that the relay will run: a text of a file becomes another one.
A variant of the driver is a flag of the world: a statement, or an operator's command, does less than it has to.
"""

from __future__ import annotations

import functools
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from outbox_relay.publisher import core as product
from tests.support.core_search.directed import SCRIPTS
from tests.support.core_search.schedules import run

LIST = Path(__file__).with_name("variants.toml")
PACKAGE = "outbox_relay.publisher.core"
FILES = ("values", "memory", "topics", "sources", "streams", "transactions", "holds", "read_back", "core")
"""The modules of the core, each after those that it imports."""
SEED = "variants"


class Edit(NamedTuple):
    """A text of a file of the core, and what replaces it."""

    file: str
    old: str
    new: str


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


def sources() -> dict[str, str]:
    """Return the text of each file of the core."""
    folder = Path(str(product.__file__)).parent
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in FILES}


@functools.cache
def core_with(edits: tuple[Edit, ...]) -> Any:
    """Return the core of changed sources.

    Raises:
        LookupError: A file does not have a text once.
    """
    texts = sources()
    for edit in edits:
        if texts[edit.file].count(edit.old) != 1:
            raise LookupError(f"{edit.file}.py has {texts[edit.file].count(edit.old)} times: {edit.old}")
        texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
    prefix = f"core_without_{abs(hash(edits)):x}"
    for name, text in texts.items():
        module = ModuleType(f"{prefix}.{name}")
        sys.modules[module.__name__] = module
        exec(compile(text.replace(f"{PACKAGE}.", f"{prefix}."), module.__name__, "exec"), module.__dict__)
    return sys.modules[f"{prefix}.core"].Core


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
