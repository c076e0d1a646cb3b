"""What of the batches on the wire may be recorded: those in front of the first that is not acknowledged."""

from __future__ import annotations

import pytest

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.on_the_wire import OnTheWire
from outbox_relay.publisher.snapshot import START


@pytest.mark.parametrize(
    ("acknowledged", "messages"),
    [([], 0), ([True], 2), ([True, True], 4), ([True, False, True], 2), ([False, True], 0)],
)
def test_what_is_behind_a_batch_that_waits_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, acknowledged: list[bool], messages: int
) -> None:
    wire = OnTheWire()
    for _ in acknowledged:
        batch = Batch((), START, START)
        batch.messages = 2
        wire.in_flight.append(batch)
    states = dict(zip(map(id, wire.in_flight), acknowledged, strict=True))
    monkeypatch.setattr(Batch, "is_acknowledged", property(lambda batch: states[id(batch)]))
    assert wire.note_acknowledged() == messages
    noted = [batch.acknowledged_at is not None for batch in wire.in_flight]
    assert noted == [all(acknowledged[: place + 1]) for place in range(len(acknowledged))]
    first = [batch.acknowledged_at for batch in wire.in_flight]
    assert wire.note_acknowledged() == messages
    assert [batch.acknowledged_at for batch in wire.in_flight] == first, "the first time counts"
