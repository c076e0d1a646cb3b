"""The JSON of callbacks: a question about one half message, and the reply.

Request, `POST`, `application/json`: the message as the checker read it; `key`, `body` and `order_key` are base64,
times are ISO 8601 with their offset. Fields may be added in later versions; readers ignore what they do not know.

Reply, `application/json`, at most 16 KiB: `200` with `{"state": "COMMIT" | "ROLLBACK" | "UNKNOWN", "remark": "…"}`;
with `"failed": true` next to UNKNOWN where the listener raised: no policy follows that check;
or `404` with `{"error": "no_checker", "remark": "…"}` when the application has no listener for the message: that uses
up no check. Everything else counts as UNKNOWN.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.checking.answers import Answer, FailedAnswer, LocalTransactionState
from outbox.checking.asker import NoCheckerError
from outbox.errors import OutboxError
from outbox.operations.remarks import shortened
from outbox.records import MessageView

CONTENT_TYPE = "application/json"
LARGEST_REPLY = 16 * 1024
"""Bytes of a reply's body; a state and a remark need less."""

OK = 200
NO_CHECKER_STATUS = 404
NO_CHECKER = "no_checker"

_TEXTS = ("transaction_id", "checker", "biz_type", "biz_id", "traceparent")


class ProtocolError(OutboxError, ValueError):
    """A request or a reply is not what the protocol allows; the text names the field."""


def request_body(view: MessageView) -> bytes:
    """Write the question about a half message."""
    return json.dumps(
        {
            "message_id": str(view.message_id),
            "id": view.id,
            "producer_group": view.producer_group,
            "topic": view.topic,
            "key": _base64(view.key),
            "body": _base64(view.body),
            "order_key": _base64(view.order_key),
            "headers": dict(view.headers),
            "tags": list(view.tags),
            "index_keys": list(view.index_keys),
            **{name: getattr(view, name) for name in _TEXTS},
            "born_at": view.born_at.isoformat(),
            "deliver_at": view.deliver_at.isoformat() if view.deliver_at else None,
            "checks": view.checks,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def view_of(body: bytes) -> MessageView:
    """Read a question.

    Raises:
        ProtocolError: It is not a JSON object, or a field is missing or of the wrong type.
    """
    fields = _object(body)
    try:
        return MessageView(
            id=_integer(fields, "id"),
            message_id=UUID(_text(fields, "message_id")),
            topic=_text(fields, "topic"),
            producer_group=_text(fields, "producer_group"),
            born_at=datetime.fromisoformat(_text(fields, "born_at")),
            key=_bytes(fields, "key"),
            body=_bytes(fields, "body"),
            headers=_headers(fields),
            order_key=_bytes(fields, "order_key"),
            tags=_texts(fields, "tags"),
            index_keys=_texts(fields, "index_keys"),
            deliver_at=None
            if fields.get("deliver_at") is None
            else datetime.fromisoformat(_text(fields, "deliver_at")),
            checks=_integer(fields, "checks"),
            **{name: None if fields.get(name) is None else _text(fields, name) for name in _TEXTS},
        )
    except (ValueError, binascii.Error) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"the request is malformed: {error}") from error


def reply_body(answer: Answer) -> bytes:
    """Write a reply. A failed check is marked, because the policy follows an UNKNOWN, but not a failure."""
    fields: dict[str, Any] = {"state": answer.state.value, "remark": shortened(answer.remark)}
    if isinstance(answer, FailedAnswer):
        fields["failed"] = True
    return json.dumps(fields).encode()


def no_checker_body(remark: str) -> bytes:
    """Write that the application has no listener for the message."""
    return json.dumps({"error": NO_CHECKER, "remark": shortened(remark)}).encode()


def answer_of_reply(status: int, body: bytes) -> Answer:
    """Read a reply whose signature was verified.

    Raises:
        NoCheckerError: The application has no listener for the message.
        ProtocolError: The protocol has no such reply.
    """
    if status not in (OK, NO_CHECKER_STATUS):
        raise ProtocolError(f"the reply has status {status}")
    fields = _object(body)
    remark = fields.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise ProtocolError(f"remark is {type(remark).__name__}; expected text or null")
    if status == NO_CHECKER_STATUS:
        if fields.get("error") != NO_CHECKER:
            raise ProtocolError(
                f'the reply has status {NO_CHECKER_STATUS} without "error": "{NO_CHECKER}": '
                "check the path of the callback URL"
            )
        raise NoCheckerError(
            shortened(remark)
            or "the application has no listener for the message; register one with listeners.register(…)"
        )
    state = fields.get("state")
    # One spelling only: what travels between two programs is no place for aliases or for truth values.
    if not isinstance(state, str) or state not in LocalTransactionState.__members__.values():
        raise ProtocolError(f"state is not valid; expected {', '.join(LocalTransactionState)}")
    failed = state == LocalTransactionState.UNKNOWN and fields.get("failed") is True
    return (FailedAnswer if failed else Answer)(LocalTransactionState(state), shortened(remark))


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the body is not valid JSON; expected an object") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"the body is a JSON {type(fields).__name__}; expected an object")
    return fields


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    return None if fields.get(name) is None else base64.b64decode(_text(fields, name), validate=True)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is {type(value).__name__}; expected text")
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{name} is {type(value).__name__}; expected an integer")
    return value


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProtocolError(f'{name} is not a list of texts; expected, for example, ["a", "b"]')
    return tuple(value)


def _headers(fields: dict[str, Any]) -> dict[str, str | None]:
    value = fields.get("headers", {})
    if not isinstance(value, dict) or not all(
        item is None or isinstance(item, str) for item in value.values()
    ):
        raise ProtocolError('headers is not an object of texts; expected, for example, {"name": "value"}')
    return value
