"""A relay whose lanes stop at messages with a topic that Kafka cannot have, as at an unavailable partition.

The relay parks them alone; tests of stopped lanes need a message at which a lane stops without a broker that dies.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from outbox_relay.publisher import records
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.finder import RawRow

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.relay_entry import die_with

NO_NAME = "x" * 250
"""Kafka has no topic with so long a name."""
_can_park = records.can_park


def can_park(row: RawRow, reason: Unpublishable) -> bool:
    """Return whether a message parks its key, or itself; in place of the function of the same name."""
    return records.is_named(row) and _can_park(row, reason)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    setattr(records, "can_park", can_park)  # noqa: B010  (mypy knows that a function is not assigned to)
    sys.argv = ["outbox", *sys.argv[2:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
