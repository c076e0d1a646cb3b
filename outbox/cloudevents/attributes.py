"""CloudEvents 1.0 in Kafka's binary mode: attributes are record headers, and the body is the event's data.

`event_headers` makes the headers of a `Message`; in other languages the same headers are given to `outbox.send`. A
message whose headers have a name that begins with `ce_` is a CloudEvent, and is checked before it is written. The id of
a message is known once its row is inserted, so the relay adds `ce_id` (the message id) and `ce_time` (when it was
inserted) to what lacks them. Both are the same in each copy of a record: the id and the source together name the event.

The specification: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from outbox.errors import InvalidMessageError
from outbox.wire import CE_CONTENT_TYPE, CE_ID, CE_PREFIX, CE_SPECVERSION, CE_TIME

Value = str | bool | int | bytes | datetime
"""The types of an attribute's value; text stands for CloudEvents' String, URI and URI-reference."""

_VERSION = "1.0"
_ATTRIBUTE = re.compile(r"[a-z0-9]+")
_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*", re.DOTALL)
_TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9!#$&^_.+-]+/[a-zA-Z0-9!#$&^_.+-]+ *(;[ -~]*)?")
_STRUCTURED = "application/cloudevents"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Fault = tuple[str, str, str]
"""A header, what is wrong with it, and what is allowed."""


def event_headers(
    *,
    type: str,
    source: str,
    subject: str | None = None,
    time: datetime | None = None,
    dataschema: str | None = None,
    datacontenttype: str | None = None,
    id: str | None = None,
    **extensions: Value | None,
) -> dict[str, str]:
    """Return the headers that make a message a CloudEvent.

    Args:
        type: What happened, as `"com.example.order.paid"`.
        source: Where it happened: a URI-reference, as `"/shop/orders"`.
        subject: What it is about, within the source.
        time: When it happened, with its time zone; None: when the message was inserted.
        dataschema: The URI of the schema of the body.
        datacontenttype: The media type of the body, as `"application/json"`; sent as the header `content-type`.
        id: The id of an event that is passed on; None: the id of the message.
        extensions: Further attributes, as `partitionkey="o-1"`.

    Raises:
        InvalidMessageError: It names the attribute.
    """
    given: dict[str, Any] = {
        "specversion": _VERSION,
        "type": type,
        "source": source,
        "subject": subject,
        "time": time,
        "dataschema": dataschema,
        "id": id,
        **extensions,
    }
    names = {CE_PREFIX + name: name for name in given} | {CE_CONTENT_TYPE: "datacontenttype"}
    headers = {CE_PREFIX + name: _text(name, value) for name, value in given.items() if value is not None}
    if datacontenttype is not None:
        headers[CE_CONTENT_TYPE] = _text("datacontenttype", datacontenttype)
    _require(headers, lambda header: names.get(header, header))
    return headers


def require_event(headers: Mapping[str, str | None]) -> None:
    """Check the headers of a message if they are those of a CloudEvent.

    Raises:
        InvalidMessageError: It names the header.
    """
    for name in headers:
        if name.startswith(CE_PREFIX):
            _require(headers, lambda header: f"headers[{header!r}]")
            return


def missing(headers: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the headers that the relay adds to a record with these: none, unless it is a CloudEvent."""
    names = {name for name, _ in headers}
    return tuple(name for name in (CE_ID, CE_TIME) if name not in names) if CE_SPECVERSION in names else ()


def added(names: Iterable[str], message_id: str, born_at: str) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of these names.

    Args:
        names: What `missing` has returned.
        message_id: The id of the message.
        born_at: When its row was inserted, in milliseconds since 1970.
    """
    return [(name, message_id if name == CE_ID else _at(int(born_at))) for name in names]


def _at(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def _text(name: str, value: Any) -> str:
    """Return the text of a value, by the canonical forms of CloudEvents' types."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise InvalidMessageError(
                name, f"{value} is out of range", "a whole number of 32 bits, or its text"
            )
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidMessageError(
                name, f"{value} has no time zone", "an aware datetime, as datetime.now(UTC)"
            )
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise InvalidMessageError(name, f"is {value.__class__.__name__}", "str, bool, int, bytes or datetime")


def _require(headers: Mapping[str, str | None], named: Callable[[str], str]) -> None:
    fault = _fault(headers)
    if fault is not None:
        header, problem, allowed = fault
        raise InvalidMessageError(named(header), problem, allowed)


def _fault(headers: Mapping[str, str | None]) -> Fault | None:
    """Return what is wrong with an event's headers; outbox.cloudevent_fault has the same rules for other languages."""
    for name, value in headers.items():
        if name.startswith(CE_PREFIX):
            attribute = name.removeprefix(CE_PREFIX)
            if not _ATTRIBUTE.fullmatch(attribute) or attribute in ("data", "datacontenttype"):
                return (
                    name,
                    f"{attribute[:60]!r} is not the name of an attribute of CloudEvents",
                    'a-z and 0-9, and not "data"; the type of the body is the header "content-type"',
                )
            if not value:
                return name, "is empty", "text; leave the attribute out if it has no value"
            if _CONTROL.search(value):
                return name, "contains a control character", "text without control characters"
    for name in (CE_SPECVERSION, "ce_type", "ce_source"):
        if name not in headers:
            return name, "is missing", "CloudEvents have specversion, type and source"
    if headers[CE_SPECVERSION] != _VERSION:
        return CE_SPECVERSION, f"is {headers[CE_SPECVERSION]!r:.60}", f'"{_VERSION}"'
    if not _URI.fullmatch(headers["ce_source"] or ""):
        return "ce_source", "is not a URI-reference", 'as "/shop/orders", other characters percent-encoded'
    schema, time, media = headers.get("ce_dataschema"), headers.get(CE_TIME), headers.get(CE_CONTENT_TYPE)
    if schema is not None and not (_URI.fullmatch(schema) and _ABSOLUTE.fullmatch(schema)):
        return "ce_dataschema", "is not a URI", 'as "https://example.com/order.json"'
    if time is not None and not _TIME.fullmatch(time):
        return CE_TIME, f"{time[:60]!r} is not a time", 'RFC 3339, as "2026-11-25T12:00:00Z"'
    if media is not None and not _MEDIA_TYPE.fullmatch(media):
        return CE_CONTENT_TYPE, f"{media[:60]!r} is not a media type", 'as "application/json"'
    if media is not None and media.lower().startswith(_STRUCTURED):
        return (
            CE_CONTENT_TYPE,
            "is that of an event in the body (structured mode), and the attributes are headers",
            "the media type of the data; or no headers that begin with ce_",
        )
    return None
