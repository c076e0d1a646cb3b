"""What the tests of the schema ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import MakeDatabase
from tests.support.strangers import Stranger, stranger


@pytest.fixture
def empty(make_database: MakeDatabase) -> str:
    """A database without the outbox's schema."""
    return make_database(migrated=False)


@pytest.fixture
def evil(empty: str) -> Iterator[Stranger]:
    """A login without rights in it."""
    with stranger(empty) as made:
        yield made
