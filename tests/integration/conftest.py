"""What several files of these tests ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.checked_half_messages import CheckStage
from tests.support.checker_process import Groups
from tests.support.plain_inserts import Connection, connect


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A connection to the database of the test, in autocommit."""
    with connect(database) as conn:
        yield conn


@pytest.fixture
def groups(database: str) -> Iterator[Groups]:
    """Producer groups, on a database of the test."""
    made = Groups(database)
    yield made
    made.close()


@pytest.fixture
def stage(database: str) -> Iterator[CheckStage]:
    """Half messages and the checker, on a database of the test."""
    stage = CheckStage(database)
    yield stage
    stage.close()
