"""Which publisher the relays of tests run: OUTBOX_CORE=new chooses the new one, for processes and threads alike."""

from __future__ import annotations

import os
from collections.abc import Mapping


def core() -> str:
    """Return which publisher the relays run that begin now; tests/conftest.py chooses it for each test."""
    return os.environ.get("OUTBOX_CORE", "old")


WRITES, WIRES, CLAIM = (
    "publisher.hands.writes:Writes",
    "publisher.hands.wires:Wires",
    "publisher.core.holds:Holds.claim",
)
STEPS: Mapping[str, str] = {
    "publisher.recorder:Recorder.commit": f"{WRITES}.commit",
    "publisher.recorder:Recorder._execute": f"{WRITES}._require_a_row",
    "publisher.recorder:Recorder.send_along": f"{WRITES}.rider",
    "publisher.recorder:Recorder.land": f"{WRITES}.land",
    "publisher.recorder:Recorder._plan": f"{WRITES}._records",
    "publisher.recorder:Recorder._note": "publisher.loop:Loop._written",
    "publisher.recorder:Recorder._claimed": f"{WRITES}._claims",
    "publisher.recorder:Recorder._drained": "publisher.core.holds:Holds.settle",
    "publisher.parked:ParkedKeys.announce": f"{WRITES}._announce",
    "publisher.parked:ParkedKeys.load": "publisher.hands.hold_rows:HoldRows._load",
    "publisher.lane_groups:Group.read_apart": "publisher.core.sources:Sources.put_apart",
    "publisher.lane_groups:_rejoin": "publisher.hands.reads:Reads._together",
    "publisher.holding:claim_of": CLAIM,
    "publisher.producing:claim_of_failure": CLAIM,
    "publisher.draining:DrainedKeys._publish_held": "publisher.hands.reads:Reads._drain",
    "publisher.draining:DrainedKeys._note_drained": "publisher.core.core:Core._add_drain",
    "publisher.producing:Publisher._wait_for_room": f"{WIRES}._waits_for_room",
    "publisher.session:Session._publish": f"{WIRES}._waits_for_room",
    "publisher.producing:Publisher.publish": f"{WIRES}._hand_over",
    "publisher.producing:Publisher.serve": f"{WIRES}.serve",
    "publisher.producing:Publisher.take_acknowledged": f"{WIRES}.take_acknowledged",
    "publisher.shared_lanes:SharedLanes._stop_reading": "publisher.loop:Loop.stop",
    "publisher.topic_changes:TopicChanges.await_change": "publisher.core.topics:TopicCounts.move",
    "publisher.topics:TopicBook._use": "publisher.core.topics:TopicCounts.move",
}
"""What the new publisher does in the place of a step of the old one, for relays that die at a step."""


def step_of(step: str) -> str:
    """Return the step of the publisher that runs."""
    return STEPS.get(step, step) if core() == "new" else step
