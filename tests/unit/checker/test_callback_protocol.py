"""What is asked arrives whole, and nothing but the three answers is read as one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.callbacks import protocol
from outbox.callbacks.protocol import ProtocolError
from outbox.checking import Answer, LocalTransactionState, NoCheckerError
from outbox.records import MessageView

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(
    st.builds(
        MessageView,
        id=st.integers(1, 2**47),
        message_id=st.uuids(),
        topic=TEXT,
        producer_group=TEXT,
        born_at=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=8))])),
        key=st.none() | st.binary(),
        body=st.none() | st.binary(),
        headers=st.dictionaries(TEXT, st.none() | TEXT),
        order_key=st.none() | st.binary(),
        tags=st.lists(TEXT).map(tuple),
        index_keys=st.lists(TEXT).map(tuple),
        transaction_id=st.none() | TEXT,
        checker=st.none() | TEXT,
        biz_type=st.none() | TEXT,
        biz_id=st.none() | TEXT,
        deliver_at=st.none() | st.datetimes(timezones=st.just(UTC)),
        traceparent=st.none() | TEXT,
        checks=st.integers(0, 15),
    )
)
def test_a_question_arrives_as_it_was_asked(view: MessageView) -> None:
    assert protocol.view_of(protocol.request_body(view)) == view


def a_question(**fields: Any) -> bytes:
    view = MessageView(7, UUID(int=1), "payments", "shop", datetime(2026, 11, 21, tzinfo=UTC))
    return json.dumps({**json.loads(protocol.request_body(view)), **fields}).encode()


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    assert protocol.view_of(a_question(color="red")).topic == "payments"


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": "no-uuid"},
        {"message_id": None},
        {"id": "7"},
        {"id": True},
        {"born_at": "yesterday"},
        {"key": "***"},
        {"body": 5},
        {"tags": "a"},
        {"tags": [1]},
        {"headers": []},
        {"headers": {"a": 1}},
        {"biz_id": 7},
    ],
)
def test_a_malformed_question_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        protocol.view_of(a_question(**fields))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.view_of(body)


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_an_answer_arrives_as_it_was_given(state: LocalTransactionState) -> None:
    answer = Answer(state, "账本里没有")
    assert protocol.answer_of_reply(200, protocol.reply_body(answer)) == answer


def test_no_checker_is_told_apart_from_every_answer() -> None:
    with pytest.raises(NoCheckerError, match="nobody there"):
        protocol.answer_of_reply(404, protocol.no_checker_body("nobody there"))
    with pytest.raises(ProtocolError, match="state"):
        protocol.answer_of_reply(200, protocol.no_checker_body("nobody there"))
    with pytest.raises(ProtocolError, match="check the path of the callback URL"):
        protocol.answer_of_reply(404, b"{}")


@given(
    st.integers(100, 599),
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["state", "remark", "error", "x"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode()),
)
def test_nothing_else_is_a_verdict(status: int, body: bytes) -> None:
    try:
        answer = protocol.answer_of_reply(status, body)
    except (ProtocolError, NoCheckerError):
        return
    assert json.loads(body)["state"] == answer.state
