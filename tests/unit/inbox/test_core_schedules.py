"""The consumer's core in a simulated world: schedules keep the promises; each safeguard taken away breaks one.

A violation is printed with what repeats it: `python -m tests.support.inbox_search --seed S --first N --schedules 1`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from outbox.inbox import core
from tests.support.inbox_search import variants
from tests.support.inbox_search.schedules import repeat, run
from tests.support.inbox_search.variants import VARIANTS, Variant
from tests.support.sources import parse, walk

SEED = "check"
SCHEDULES = 200
"""Of each of the parts, so that the whole takes seconds."""
MORE = 1500
"""Schedules in which a variant is searched again, if a change has moved the one that caught it."""


@pytest.mark.feature("S-90", "S-100")
@pytest.mark.parametrize("part", range(5))
def test_random_schedules_of_consumers_keep_every_promise(part: int) -> None:
    for number in range(part * SCHEDULES + 1, (part + 1) * SCHEDULES + 1):
        faults = run(SEED, number).faults
        assert not faults, f"{sorted(faults)}: {repeat(SEED, number)}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_search_catches_the_inbox_core_without_a_safeguard(variant: Variant) -> None:
    if not variants.faults_of(variant, variant.schedule):
        found = variants.catching(variant, MORE)
        assert found is not None, f"no schedule of {MORE} shows what {variant.name!r} breaks"


def test_the_core_of_consumers_does_no_io_and_reads_no_clock() -> None:
    allowed = {"outbox.backoff", "outbox.errors", *(f"outbox.inbox.{name}" for name in PLAIN)}
    pure = {
        "__future__",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "logging",
        "math",
        "typing",
    }
    faults = [
        f"{path.name}:{node.lineno} imports {node.module}"
        for path in sorted(Path(str(core.__file__)).parent.glob("*.py"))
        for node in walk(parse(path))
        if isinstance(node, ast.ImportFrom) and node.module not in allowed | pure
        if not str(node.module).startswith("outbox.inbox.core")
    ]
    assert faults == []


PLAIN = ("failures", "messages", "parked_rows", "starts", "vitals")
"""Values that the core and the rooms around it share."""
