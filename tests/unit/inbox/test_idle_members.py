"""A member without partitions says so in its log, once each time."""

from __future__ import annotations

import pytest

from outbox.inbox.idle import IDLE_S, IdleWatch


def test_a_member_without_partitions_logs_that_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    watch = IdleWatch("points")
    began = watch._since
    assert began is not None
    assert not watch.changed(0, began + IDLE_S - 1)
    assert caplog.messages == [], "a rebalance may take a while"
    assert not watch.changed(0, began + IDLE_S)
    assert not watch.changed(0, began + 2 * IDLE_S)
    [message] = caplog.messages
    assert "group points: this member has read no partition for 60 s" in message
    assert "outbox consumers show points" in message
    assert watch.changed(3, began + 200)
    assert not watch.changed(2, began + 201)
    assert watch.changed(0, began + 300)
    assert not watch.changed(0, began + 300 + IDLE_S - 1)
    assert len(caplog.messages) == 1
    assert not watch.changed(0, began + 300 + IDLE_S)
    assert len(caplog.messages) == 2
