"""What the tests of retention ask for."""

from __future__ import annotations

import pytest


@pytest.fixture
def database(private_database: str) -> str:
    """On servers of this process: a transaction that runs anywhere in a server keeps a range from being closed."""
    return private_database
