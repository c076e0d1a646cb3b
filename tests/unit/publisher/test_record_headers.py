"""A row's headers, decoded by the relay: reserved names are refused, however their text spells them."""

from __future__ import annotations

import json

import pytest

from outbox import wire
from outbox_relay.publisher import records
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.records import decode_headers

RESERVED = ["outbox-id", "Outbox-Tags", "OUTBOX-", "outbox-of-my-own", "traceparent", "TraceParent"]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("others", [{}, {"a": "1", "ü": "2"}, {"long": "x" * 1_000}])
def test_a_reserved_name_is_refused_among_any_others(name: str, others: dict[str, str]) -> None:
    text = json.dumps({**others, name: "x"}, ensure_ascii=False)
    for _ in range(2):
        with pytest.raises(Unpublishable, match="is reserved for the outbox"):
            decode_headers(text)


@pytest.mark.parametrize(
    "text", [r'{"\u006futbox-id": "x"}', r'{"outbox\u002did": "x"}', r'{"Trac\u0065Parent": "x"}']
)
def test_a_reserved_name_cannot_hide_behind_an_escape(text: str) -> None:
    with pytest.raises(Unpublishable, match="is reserved for the outbox"):
        decode_headers(text)


def test_other_headers_come_as_pairs_in_their_order() -> None:
    text = r'{"my-outbox-id": "outbox-id", "traceparents": "traceparent", "trace": null, "q\"": "ü", "": ""}'
    expected = [
        ("my-outbox-id", "outbox-id"),
        ("traceparents", "traceparent"),
        ("trace", None),
        ('q"', "ü"),
        ("", ""),
    ]
    assert decode_headers(text) == decode_headers(text) == expected
    assert decode_headers("{}") == []


@pytest.mark.parametrize("text", ["[]", '["a"]', '"a"', "5", "null", "true", '[["a", "b"]]'])
def test_headers_that_are_not_an_object_are_refused(text: str) -> None:
    with pytest.raises(Unpublishable, match="not a JSON object"):
        decode_headers(text)


def test_names_that_a_producer_makes_up_do_not_fill_the_memory() -> None:
    for number in range(3 * records.ALLOWED_KEPT):
        decode_headers(json.dumps({f"n{number}": "x", f"{number}" + "l" * 1_000: "x"}))
        assert len(records._allowed) <= records.ALLOWED_KEPT
    assert max(map(len, records._allowed)) < 1_000
    assert not any(map(wire.is_reserved, records._allowed))
