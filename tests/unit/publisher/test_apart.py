"""A topic that is read apart: what is recorded together, and which lanes go on how."""

from __future__ import annotations

from outbox_relay.publisher.batch import Batch, runs
from outbox_relay.publisher.snapshot import Progress, Snapshot

FLOOR = Progress(Snapshot(10, 10), is_partial=True)


def _batch(position: int, topic: int | None, lanes: tuple[int, ...] = (0, 1)) -> Batch:
    return Batch(lanes, FLOOR, FLOOR, positions=[position], messages=1, topic=topic)


def test_a_publication_is_of_one_topic_that_is_read_apart_or_of_the_others() -> None:
    """Else its bounds would span what lies between an old backlog and new messages."""
    acknowledged = [
        _batch(at, topic) for at, topic in [(1, 7), (2, 7), (900, None), (901, None), (3, 7), (4, 8)]
    ]
    found = [[batch.positions[0] for batch in run] for run in runs(acknowledged, 5_000)]
    assert found == [[1, 2], [900, 901], [3], [4]]
