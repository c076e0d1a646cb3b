"""One session of the relay in this process, turn by turn; tests act between two turns, or between two steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outbox_relay.publisher.finder import PAGE
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session
from tests.support.waiting import wait_until

DEFAULTS: Mapping[str, str] = {}
LIMIT = 60.0
"""Seconds for a relay to take the lanes, or to end."""


class _Died(BaseException):
    """The relay dies: it settles nothing, and gives nothing back."""


class _Stepped(Relay):
    """A relay whose loop is the test."""

    def __init__(self, options: RelayOptions, *, clean: bool) -> None:
        super().__init__(options)
        self._clean = clean
        self.handed: queue.Queue[Any] = queue.Queue()
        self.done = threading.Event()

    def work(self) -> None:
        """Run until the test is done."""
        try:
            self.run()
        except _Died:
            pass
        except Exception as error:  # noqa: BLE001  (the test raises it)
            self.handed.put(error)

    def _loop(self, session: Any) -> None:
        self.handed.put(session)
        self.done.wait()
        self.stop()
        if not self._clean:
            raise _Died


@contextmanager
def relay_session(
    dsn: str,
    bootstrap_servers: str,
    *,
    clean: bool = True,
    page: int = PAGE,
    kafka: Mapping[str, str] = DEFAULTS,
) -> Iterator[Session]:
    """Take the lanes and yield the session; at the end settle and give them back, or die where not `clean`.

    `kafka`: settings of librdkafka other than the relay's.
    """
    relay = _Stepped(
        RelayOptions(
            dsn,
            bootstrap_servers,
            page=page,
            kafka=kafka,
        ),
        clean=clean,
    )
    thread = threading.Thread(target=relay.work, daemon=True)
    thread.start()
    try:
        session = relay.handed.get(timeout=LIMIT)
        if isinstance(session, Exception):
            raise session
        yield session
    finally:
        relay.done.set()
        thread.join(LIMIT)
    assert relay.handed.empty(), relay.handed.get()


def loop_of(session: Session) -> Loop:
    """Return the loop that publishes the lanes of a session."""
    loop = session._loop
    assert loop is not None
    return loop


def turn_until(session: Session, condition: Callable[[], bool], what: str) -> None:
    """Let the relay take turns until something is true."""

    def after_a_turn() -> bool:
        session.run_once(0.005)
        return condition()

    wait_until(after_a_turn, what)
