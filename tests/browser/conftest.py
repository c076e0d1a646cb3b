"""What tests of the console in a real browser share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.plain_inserts import Connection, connect
from tests.support.real_browser import Person, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    """Chromium, without a window."""
    with chromium() as made:
        yield made


@pytest.fixture
def person(chrome: Browser) -> Iterator[Callable[..., Person]]:
    """Makes people; whatever their browser complained about fails the test."""
    made: list[Person] = []

    def make(port: int, **how: object) -> Person:
        made.append(Person(chrome, port, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert [text for one in made for text in one.complaints] == []


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A connection to the test's database."""
    with connect(database) as made:
        yield made
