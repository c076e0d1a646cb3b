"""What the tests of consumers ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.inbox_stage import InboxStage


@pytest.fixture
def inbox(database: str, bootstrap_servers: str) -> Iterator[InboxStage]:
    """A database with a business table, and a consumer group, of this test."""
    stage = InboxStage(database, bootstrap_servers)
    yield stage
    stage.close()
