"""The marks of a module whose tests run Spark in their own process: `pytestmark = MARKS`."""

from __future__ import annotations

import pytest

# py4j leaves its sockets to the garbage collector.
MARKS = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
