"""The relay inside the test's process: no start of Python to wait for, and its session to look at."""

from __future__ import annotations

import time
from typing import Any

from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session

LIMIT_S = 60.0


def publish(dsn: str, bootstrap_servers: str, messages: int, **options: Any) -> Relay:
    """Run a relay until it has recorded so many messages as published, and return it, stopped.

    Args:
        dsn: The outbox's database.
        bootstrap_servers: As the relay is given them.
        messages: How many are to be recorded.
        options: Further `RelayOptions`.

    Raises:
        AssertionError: they are not recorded within a minute.
    """
    relay = Relay(RelayOptions(dsn, bootstrap_servers, **options))
    deadline = time.monotonic() + LIMIT_S
    recorded = 0

    def watch(session: Session) -> None:
        nonlocal recorded
        recorded = session.counts.recorded
        if recorded >= messages or time.monotonic() > deadline:
            relay.stop()

    relay.on_turn = watch
    relay.run()
    assert recorded >= messages, f"{recorded} of {messages} messages were recorded within {LIMIT_S:g} s"
    return relay
