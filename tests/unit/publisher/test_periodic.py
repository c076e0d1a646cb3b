"""Work that a service repeats next to its main loop."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, cast

from outbox_relay.database.periodic import Periodic, Task


def test_two_tasks_run_at_the_same_time() -> None:
    """Each has the log's context of whoever made them."""
    met = threading.Barrier(3, timeout=30)

    def one(_: Any) -> bool:
        met.wait()
        return True

    def other(_: Any) -> bool:
        met.wait()
        return True

    with Periodic(lambda: cast("Any", nullcontext()), [Task(one, 0.0, 60.0), Task(other, 0.0, 60.0)]):
        met.wait()
