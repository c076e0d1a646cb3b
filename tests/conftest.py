"""What every test may ask for: real servers, a database of its own, topics of its own."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

pytest_plugins = ("tests.support.servers", "tests.support.logins")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector: what is collected stays, and each run would visit all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
