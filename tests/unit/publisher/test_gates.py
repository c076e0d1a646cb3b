"""What is said of topics that are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.topic_watch import TopicWatch
from outbox_relay.publisher.records import Topic
from tests.support.core_search.directed_calls import core_of


def test_a_topic_is_said_to_be_held_once_however_many_partitions_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = core_of(Core)
    writes = SimpleNamespace(holds=SimpleNamespace(by_scope={}, errors={}), unrequested=set())
    gates = Gates(core, cast("Any", None), cast("Any", writes), cast("Any", None))
    for _partition in range(2):
        gates.hold_topic("a", "TOPIC_AUTHORIZATION_FAILED", 1.0)
    assert [record.getMessage() for record in caplog.records] == ["topic is held"]


def test_a_topic_whose_partitions_no_producer_lists_is_behind_for_the_next_loop_too() -> None:
    """The loop is replaced meanwhile, when lanes change hands or after an error of its own."""
    topics = TopicWatch(cast("Any", None), cast("Any", None), cast("Any", None), {})
    deaf = SimpleNamespace(lists=lambda topic: False)
    wires = cast("Any", SimpleNamespace(open=lambda producer: deaf, may_deliver=lambda name: False))
    core = core_of(Core)
    core.set_count("grown", (2, None))
    Gates(core, topics, cast("Any", None), wires).meet(
        {"grown": Topic("grown", 4, None, 1000, skip_ahead=False)}
    )
    assert Gates(core_of(Core), topics, cast("Any", None), wires).behind == ["grown"]
