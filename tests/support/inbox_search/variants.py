"""Variants of the consumer's core without one safeguard each; the search has to catch every one of them.

A variant changes the very sources that consumers run: a text of a file becomes another one.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from outbox.inbox import core as product
from tests.support.inbox_search.schedules import run
from tests.support.inbox_search.world import Core
from tests.support.searching import Edit, changed

FILES = ("tracker", "key_queues", "full_keys", "suspects", "partitions", "rounds", "hands", "retries")
"""The modules of the core, each after those that it imports."""
SEED = "variants"


class Variant(NamedTuple):
    """One safeguard less, and the schedule of SEED that catches it."""

    name: str
    file: str
    old: str
    new: str
    schedule: int = 1


def listed() -> tuple[Variant, ...]:
    """Read the list."""
    text = Path(__file__).with_name("variants.toml").read_text(encoding="utf-8")
    return tuple(Variant(**row) for row in tomllib.loads(text)["variant"])


VARIANTS = listed()


@functools.cache
def core_with(file: str, old: str, new: str) -> Core:
    """Return the core of changed sources.

    Raises:
        LookupError: The file does not have the text once.
    """
    found: Any = changed(product, FILES, [Edit(file, old, new)])
    return Core(found["partitions"].Partitions, found["hands"].Hands, found["retries"].Retries)


def faults_of(variant: Variant, number: int) -> set[str]:
    """Run one schedule of a variant, and return what it broke; the core never raises."""
    core = core_with(variant.file, variant.old, variant.new)
    try:
        return run(SEED, number, core=core).faults
    except (KeyError, IndexError, ValueError) as error:
        return {f"raises {type(error).__name__}"}


def catching(variant: Variant, most: int) -> int | None:
    """Return the number of the first schedule that catches a variant, at most so many."""
    return next((number for number in range(1, most + 1) if faults_of(variant, number)), None)
