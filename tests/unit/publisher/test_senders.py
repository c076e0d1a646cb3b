"""A producer of the exactly-once mode takes no call for done that failed a moment ago."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from outbox_relay.publisher.hands.senders import Sender


@pytest.mark.parametrize(("error", "is_confirmed"), [(None, True), (TimeoutError("no reply"), False)])
def test_a_call_that_failed_confirms_nothing(error: Exception | None, *, is_confirmed: bool) -> None:
    """It may fail between the question for failures and the one for its end, and is then no end of a batch."""
    sender, call = Sender({"bootstrap.servers": "127.0.0.1:9"}, "outbox-test"), Future[Any]()
    sender.call = call
    assert (sender.is_confirmed, sender.is_delivered) == (False, False), "it has not ended"
    if error is None:
        call.set_result(None)
    else:
        call.set_exception(error)
    assert (sender.is_confirmed, sender.is_delivered) == (is_confirmed, is_confirmed)
    sender.close()
