"""What tests of the console share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.console_pages import Browser, served
from tests.support.plain_inserts import Connection, connect


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A connection to the test's database."""
    with connect(database) as made:
        yield made


@pytest.fixture
def browser(database: str) -> Iterator[Browser]:
    """The browser of somebody who opened the console of the test's database."""
    with served(database) as console:
        yield console.browser()
