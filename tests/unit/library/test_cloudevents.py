"""CloudEvents in binary mode: the headers that are made, and what is refused before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from outbox import Message
from outbox.cloudevents import event_headers
from outbox.cloudevents.attributes import added, missing
from outbox.errors import InvalidMessageError
from outbox.operations.size import record_size
from outbox.wire import record_bytes

NOON = datetime(2026, 11, 25, 12, 0, 0, 5000, tzinfo=timezone(timedelta(hours=1)))


def test_attributes_become_headers_in_their_canonical_forms() -> None:
    headers = event_headers(
        type="com.example.order.paid",
        source="/shop/orders",
        subject="订单-1",
        time=NOON,
        dataschema="https://example.com/order.json",
        datacontenttype="application/json; charset=utf-8",
        partitionkey="o-1",
        sampled=True,
        rate=-7,
        digest=b"\x00\xff",
        absent=None,
    )
    assert headers == {
        "ce_specversion": "1.0",
        "ce_type": "com.example.order.paid",
        "ce_source": "/shop/orders",
        "ce_subject": "订单-1",
        "ce_time": "2026-11-25T11:00:00.005000Z",
        "ce_dataschema": "https://example.com/order.json",
        "content-type": "application/json; charset=utf-8",
        "ce_partitionkey": "o-1",
        "ce_sampled": "true",
        "ce_rate": "-7",
        "ce_digest": "AP8=",
    }
    assert Message("orders", headers=headers).headers == headers


@pytest.mark.parametrize(
    ("attributes", "names", "problem"),
    [
        ({"type": ""}, "type", "is empty"),
        ({"type": None}, "type", "is missing"),
        ({"source": None}, "source", "is missing"),
        ({"source": "/订单"}, "source", "is not a URI-reference"),
        ({"source": "/a b"}, "source", "is not a URI-reference"),
        ({"subject": ""}, "subject", "is empty"),
        ({"subject": "a\nb"}, "subject", "control character"),
        ({"id": ""}, "id", "is empty"),
        ({"time": datetime(2026, 1, 1)}, "time", "no time zone"),
        ({"time": "yesterday"}, "time", "is not a time"),
        ({"dataschema": "/order.json"}, "dataschema", "is not a URI"),
        ({"datacontenttype": "json"}, "datacontenttype", "is not a media type"),
        ({"datacontenttype": "Application/CloudEvents+json"}, "datacontenttype", "structured mode"),
        ({"partition_key": "x"}, "partition_key", "is not the name of an attribute"),
        ({"partitionKey": "x"}, "partitionKey", "is not the name of an attribute"),
        ({"data": "x"}, "data", "is not the name of an attribute"),
        ({"specversion": "0.3"}, "specversion", "'0.3'"),
        ({"rate": 2**31}, "rate", "out of range"),
        ({"rate": 1.5}, "rate", "is float"),
    ],
)
def test_a_wrong_attribute_is_refused_by_its_name(
    attributes: dict[str, Any], names: str, problem: str
) -> None:
    with pytest.raises(InvalidMessageError, match=problem) as caught:
        event_headers(**{"type": "t", "source": "/s", **attributes})
    assert str(caught.value).startswith(f"{names}: ")


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"ce_type": "t", "ce_source": "/s"}, "ce_specversion"),
        ({"ce_specversion": "1.0", "ce_source": "/s"}, "ce_type"),
        ({"ce_specversion": "1.0", "ce_type": "t", "ce_source": None}, "ce_source"),
        ({"ce_specversion": "1.0", "ce_type": "t", "ce_source": "/s", "ce_my-own": "x"}, "ce_my-own"),
    ],
)
def test_headers_written_by_hand_are_checked_when_the_message_is_made(
    headers: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        Message("orders", headers=headers)
    assert str(caught.value).startswith(f"headers['{named}']: ")


def test_the_relay_adds_the_id_and_the_time_to_events_only() -> None:
    event = list(event_headers(type="t", source="/s").items())
    assert missing([("content-type", "text/plain"), ("ce", None)]) == ()
    assert added(missing(event), "the-id", "1795608000007") == [
        ("ce_id", "the-id"),
        ("ce_time", "2026-11-25T12:00:00.007Z"),
    ]
    own = list(event_headers(type="t", source="/s", id="e-1", time=NOON).items())
    assert missing(own) == ()


def test_what_the_relay_adds_counts_for_the_size() -> None:
    headers = event_headers(type="t", source="/s")
    born = round(datetime(2026, 11, 25, tzinfo=UTC).timestamp() * 1000)
    sent: list[tuple[str, Any]] = [("outbox-id", "i" * 36), ("outbox-born-at", str(born)), *headers.items()]
    sent += added(missing(sent), "i" * 36, str(born))
    assert len(sent) == 7
    assert record_size(Message("orders", body=b"x", headers=headers), None) == record_bytes(None, b"x", sent)
