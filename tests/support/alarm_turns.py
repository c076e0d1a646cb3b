"""One turn of what finds alarms, as a relay takes it."""

from __future__ import annotations

from outbox_relay.alarms.observing import FindLate, observe
from tests.support.plain_inserts import connect_as_service
from tests.support.waiting import wait_until


def take_turn(database: str, find_late: FindLate | None = None, *, slow: bool = True) -> None:
    """Raise and clear alarms by what is found, in a session of its own with the relay's role."""
    with connect_as_service(database) as conn:
        conn.execute("SET ROLE outbox_relay")
        # The session of a turn before has the lock until the server has seen that it was closed.
        wait_until(lambda: observe(conn, find_late, slow=slow), "nobody else observes")
