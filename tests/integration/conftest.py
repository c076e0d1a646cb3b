"""What several files of these tests ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.check_stage import CheckStage


@pytest.fixture
def stage(database: str) -> Iterator[CheckStage]:
    """Half messages and the checker, on a database of the test."""
    stage = CheckStage(database)
    yield stage
    stage.close()
