"""The marks of a module whose tests run Spark in their own process: `pytestmark = MARKS`."""

from __future__ import annotations

from typing import Any

import pytest

# py4j leaves its sockets to the garbage collector.
MARKS = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def first_in_gate(*values: Any) -> list[Any]:
    """Parametrize over the values; CI runs the first one, `make spark` all."""
    first, *others = values
    return [pytest.param(first, marks=pytest.mark.gate), *others]
