"""What is said of topics that are closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.hands.gates import Gates
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
