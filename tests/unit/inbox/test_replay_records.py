"""What a replay gives to a group is what the relay has published: the same headers, and the same day of the inbox."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from outbox.inbox.messages import Source, identify
from outbox_relay.operations.replay_source import Chosen, Contents, record_of

BORN, DUE = 1_699_999_999_999, 1_700_784_000_000
CHOSEN = Chosen(
    *(1, UUID("6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11"), 1, b"k", [], BORN, None, 0, 0),
    datetime(2023, 12, 1, tzinfo=UTC),
)
CONTENTS = Contents(b"body", None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("due", "day"), [(None, "2023-11-14"), (DUE, "2023-11-24"), (BORN - 1, "2023-11-14")]
)
def test_a_message_is_looked_for_under_the_day_that_its_delivery_has(due: int | None, day: str) -> None:
    chosen = replace(CHOSEN, due=due)
    record = record_of("orders", chosen, CONTENTS)
    assert dict(record.headers).get("outbox-deliver-at") == (None if due is None else str(due).encode())
    assert str(chosen.born_on) == str(identify(Source(1, "c/t"), record, orderly=True).born_on) == day


@pytest.mark.parametrize(
    ("order_key", "queue", "selector", "order"),
    [
        (None, None, None, b"k"),
        (b"\xff", None, None, b"\xff"),
        (None, 0, None, b"queue:0"),
        (b"o", 0, "mine", b"o"),
    ],
)
def test_a_message_is_ordered_as_its_record_is(
    order_key: bytes | None, queue: int | None, selector: str | None, order: bytes
) -> None:
    chosen = replace(CHOSEN, row_order_key=order_key, queue=queue, selector=selector)
    record = record_of("orders", chosen, CONTENTS)
    assert chosen.order_key == identify(Source(1, "c/t"), record, orderly=True).order_key == order


def test_a_cloudevent_has_the_attributes_that_the_relay_added() -> None:
    contents = CONTENTS._replace(headers='{"ce_type": "t", "ce_source": "/s", "ce_specversion": "1.0"}')
    headers = dict(record_of("orders", CHOSEN, contents).headers)
    assert headers["ce_id"] == headers["outbox-id"] == str(CHOSEN.message_id).encode()
    assert headers["ce_time"] == b"2023-11-14T22:13:19.999Z"
