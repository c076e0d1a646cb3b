"""What the tests of the relay ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.parking import Parking
from tests.support.plain_inserts import connect
from tests.support.servers import MakeTopic


@pytest.fixture
def parking(database: str, make_topic: MakeTopic) -> Iterator[Parking]:
    """A topic of which large messages park their keys."""
    with connect(database) as conn:
        yield Parking(conn, make_topic(partitions=1))
