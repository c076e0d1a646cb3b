"""The relay as a thread of the test's own process: it starts in milliseconds, and its log is at hand."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session
from outbox_relay.text.logs import ROOT
from tests.support.relay_process import Event
from tests.support.waiting import wait_until


class RelayThread(logging.Handler):
    """One relay, started at once and stopped at the end of its `with` block.

    `error` is what ended it, `session` its present session.
    """

    def __init__(self, dsn: str, bootstrap_servers: str, **options: Any) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.session: Session | None = None
        self._relay = Relay(RelayOptions(dsn, bootstrap_servers, **options))
        self._relay.on_turn = self._on_turn
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _on_turn(self, session: Session) -> None:
        self.session = session

    def _run(self) -> None:
        try:
            self._relay.run()
        except BaseException as error:  # noqa: BLE001  (the test asks for it)
            self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event of the relay's log."""
        self.events.append({"event": record.getMessage(), **getattr(record, "fields", {})})

    def find(self, event: str, **fields: Any) -> list[Event]:
        """The events of this name whose fields have these values."""
        wanted = {"event": event, **fields}
        return [seen for seen in list(self.events) if wanted.items() <= seen.items()]

    def wait_for(self, event: str, *, seconds: float = 60.0, **fields: Any) -> Event:
        """Wait until the relay has logged this event, and return the first one."""

        def logged() -> list[Event]:
            assert self._thread.is_alive() or self.find(event, **fields), f"the relay ended: {self.error!r}"
            return self.find(event, **fields)

        return wait_until(logged, f"relay logs {event!r} {fields}", seconds=seconds)[0]

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop it; `error` says how it ended."""
        self._relay.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the relay does not stop"

    def __enter__(self) -> Self:
        logging.getLogger(ROOT).addHandler(self)
        logging.getLogger(ROOT).setLevel(logging.INFO)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        logging.getLogger(ROOT).removeHandler(self)
