"""Fixtures of RocketMQ's programming models: what is committed, and applications of both kinds with a producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import rocketmq_5x_applications, rocketmq_scripts
from tests.support.rocketmq_5x_applications import Checker, MakeApp5x
from tests.support.rocketmq_scripts import KINDS, MakeApp, Truth


@pytest.fixture
def truth(database: str) -> Iterator[Truth]:
    """What is committed in the test's database, which has a table `business`."""
    made = Truth(database)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def make_app(request: pytest.FixtureRequest, database: str, truth: Truth) -> Iterator[MakeApp]:
    """Make applications of the 4.x model, running unless start=False; the script says what the listener does."""
    made: list[rocketmq_scripts.App | rocketmq_scripts.AsyncApp] = []

    def make(*, start: bool = True, options: dict[str, Any] | None = None, **script: Any) -> Any:
        app = KINDS[request.param](database, script, options or {})
        made.append(app)
        if start:
            app.start()
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture(
    params=[rocketmq_5x_applications.App, rocketmq_5x_applications.AsyncApp], ids=["threads", "asyncio"]
)
def make_app_5x(request: pytest.FixtureRequest, database: str, truth: Truth) -> Iterator[MakeApp5x]:
    """Make applications of the 5.x model, running unless start=False."""
    made: list[rocketmq_5x_applications.App] = []

    def make(*, start: bool = True, **options: Any) -> rocketmq_5x_applications.App:
        given = {"producer_group": "orders", "checker": Checker(), "check": False, **options}
        app: rocketmq_5x_applications.App = request.param(database, given)
        made.append(app)
        if start:
            app.start()
        return app

    yield make
    for app in made:
        app.close()
