"""Shows parked messages to people, a line for each."""

from __future__ import annotations

from collections.abc import Sequence

from outbox_relay.cli import output
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting

COLUMNS = {
    "id": "id",
    "group": "consumer_group",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "key": "key",
    "attempts": "attempts",
    "failed": "failed_at",
    "next try": "due_at",
    "waiting": "waiting",
    "failure": "failure",
}


def messages(found: Sequence[Row]) -> None:
    """Print dead letters, or messages that are tried again, which have the time of their next try besides."""
    columns = [column for column, name in COLUMNS.items() if name in found[0]]
    output.table(
        columns,
        [
            [
                formatting.printable(row["failure"] or "") if column == "failure" else row[COLUMNS[column]]
                for column in columns
            ]
            for row in found
        ],
        right={"id", "partition", "offset", "attempts", "waiting"} & set(columns),
        keep=[each for each in ("id", "group", "attempts", "next try", "failure") if each in columns],
        text=("failure",),
    )
