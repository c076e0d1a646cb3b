"""The fixtures of pytest: loaded by its entry point where this package is installed, and idle until a test asks.

    outbox_dsn                the database: the option `outbox_dsn` of pytest's configuration, or OUTBOX_DSN
    outbox_bootstrap_servers  the broker: the option `outbox_bootstrap_servers`, or OUTBOX_BOOTSTRAP_SERVERS
    outbox_sent               `outbox.testing.SentMessages` of what is committed there
    outbox_publish            publishes that to the broker; returns how many messages

Each of them may be replaced by a fixture of the same name in your conftest.py. Nothing of the outbox is imported before
a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outbox.testing import SentMessages

OPTIONS = {
    "outbox_dsn": ("OUTBOX_DSN", "address of the database with the schema outbox"),
    "outbox_bootstrap_servers": (
        "OUTBOX_BOOTSTRAP_SERVERS",
        "Kafka brokers that outbox_publish publishes to",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the options."""
    for name, (variable, text) in OPTIONS.items():
        parser.addini(name, f"{text}; {variable} unless given", default="")


@pytest.fixture(scope="session")
def outbox_dsn(pytestconfig: pytest.Config) -> str:
    """The database with the schema outbox."""
    return _option(pytestconfig, "outbox_dsn")


@pytest.fixture(scope="session")
def outbox_bootstrap_servers(pytestconfig: pytest.Config) -> str:
    """The broker."""
    return _option(pytestconfig, "outbox_bootstrap_servers")


@pytest.fixture
def outbox_sent(outbox_dsn: str) -> Iterator[SentMessages]:
    """What is sent during the test, and committed."""
    from outbox.sessions import connect  # noqa: PLC0415  (only where a test uses it)
    from outbox.testing import SentMessages  # noqa: PLC0415

    with connect(outbox_dsn, "outbox testing") as conn:
        yield SentMessages(conn)


@pytest.fixture
def outbox_publish(outbox_dsn: str, outbox_bootstrap_servers: str) -> Callable[..., int]:
    """A function that publishes what is committed, by a relay of this process; see `publishing.publish_all`."""
    from outbox_relay.testing.publishing import publish_all  # noqa: PLC0415  (only where a test uses it)

    def publish(**options: Any) -> int:
        return publish_all(outbox_dsn, outbox_bootstrap_servers, **options)

    return publish


def _option(config: pytest.Config, name: str) -> str:
    variable, text = OPTIONS[name]
    found: str = config.getini(name) or os.environ.get(variable, "")
    if not found:
        raise pytest.UsageError(
            f"{name} is not known: the {text}. Set {variable}, write `{name} = …` into pytest's configuration, or "
            f"write a fixture {name} of your own"
        )
    return found
