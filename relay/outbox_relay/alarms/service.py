"""Finds and delivers alarms while a relay runs, on two threads with connections of their own."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from outbox_relay.alarms.delivery import Delivery, Webhook
from outbox_relay.alarms.observing import FindLate, observe
from outbox_relay.database.connections import connect
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.database.schema import require_current
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

EVERY_S = 5.0
REST = 20.0
"""How many times as long as a search for what is slow to find took the pause after it is, at least."""

log = Log("alarms")


class AlarmService(Periodic):
    """Observes and sends, between `with` and the end of its block.

    Args:
        dsn: of a user with the role outbox_relay.
        webhook: where alarms go.
        find_late: as of `observe`.
        every: seconds between two turns.
    """

    def __init__(
        self, dsn: str, webhook: Webhook, find_late: FindLate | None, *, every: float = EVERY_S
    ) -> None:
        self._delivery = Delivery(webhook)
        self._find_late = find_late
        self._slow_at = 0.0
        super().__init__(
            lambda: connect(dsn, application_name="outbox relay alarms"),
            [Task(self.watch, 1.0, every), Task(self.send, 1.0, every)],
            on_defect=_report,
        )

    def watch(self, conn: psycopg.Connection[Any]) -> bool:
        """Observe once."""
        try:
            require_current(conn)
        except OperatorError as error:
            log.warning("alarms are not raised", error=" ".join(str(error).split()))
            return True
        began = time.monotonic()
        slow = began >= self._slow_at
        observe(conn, self._find_late, slow=slow)
        if slow:
            now = time.monotonic()
            self._slow_at = now + REST * (now - began)
        return True

    def send(self, conn: psycopg.Connection[Any]) -> bool:
        """Send what is due."""
        self._delivery.send_due(conn)
        return True


def _report(defect: Exception) -> None:
    """Log a defect, which must neither end the relay nor end the alarms unseen."""
    log.error("alarms failed", kind=type(defect).__name__, error=str(defect))
