"""What every test may ask for: real servers, a database of its own, topics of its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import hostile

pytest_plugins = (
    "tests.support.servers",
    "tests.support.logins",
    "tests.support.failures",
    "tests.support.older_software",
)

os.environ["PGOPTIONS"] = hostile.PGOPTIONS

# How fast examples are drawn and run says something of the machine, not of the code: no test fails for it.
settings.register_profile("outbox", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outbox")


@pytest.fixture
def without_pgoptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections of this test begin with what its database or role sets, else with what its server does."""
    monkeypatch.delenv("PGOPTIONS")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected from the garbage collector, now and later: it stays, and each look would visit it all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
