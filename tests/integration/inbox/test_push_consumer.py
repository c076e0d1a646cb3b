"""A consumer applies the effect of each message once, whatever is delivered again."""

from __future__ import annotations

import pytest

from tests.support.inbox_stage import InboxStage


@pytest.mark.feature("S-93")
def test_each_message_is_applied_once_and_the_offsets_follow(inbox: InboxStage, topic: str) -> None:
    ids = inbox.produce_numbered(topic, 40)
    with inbox.consumer(topic):
        inbox.wait_applied(40)
    assert sorted(inbox.applied()) == sorted(ids)
    assert inbox.count("outbox.inbox") == 40
    assert [inbox.committed(topic, part) for part in range(4)] == [12, 12, 8, 8]
    inbox.produce_numbered(topic, 4, start=40)
    with inbox.consumer(topic):
        inbox.wait_applied(44)
    assert inbox.count("applied") == 44
