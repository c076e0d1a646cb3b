"""Checks of single values: text, bytes, names, record headers. Each raises an error that states what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from outbox.cloudevents.attributes import require_event
from outbox.errors import InvalidMessageError
from outbox.wire import RESERVED_PREFIX, TRACEPARENT, is_reserved

TOPIC_ALLOWED = '1 to 249 characters of a-z, A-Z, 0-9, ".", "_" and "-", and not "." or ".."'
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SPACE = re.compile(r"\s")

LONGEST_TEXT = 255
"""Characters of a producer_group, transaction_id, checker, biz_type, biz_id or selector, as in the table."""
LONGEST_ORDER_KEY = 1024 * 1024
"""Bytes of an order key; the table has the same limit."""


def exact(value: str) -> str:
    """Return the value of a text as `str` itself.

    A subclass, such as a member of `class Topic(str, Enum)`, may have another `str(…)`, hash or length than its value,
    and what comes later (statements, librdkafka, a mapping) would take that.
    """
    return value if type(value) is str else str.__str__(value)


def topic_name(value: Any) -> str:
    """Check Kafka's rule for topic names."""
    if not isinstance(value, str):
        raise InvalidMessageError("topic", f"is {type(value).__name__}", "str")
    name = exact(value)
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise InvalidMessageError("topic", f"{_short(name)} is not a legal Kafka topic name", TOPIC_ALLOWED)
    return name


def text(argument: str, value: Any) -> str:
    """Check text for a column: not empty, not too long, no NUL, and UTF-8 can express it."""
    if not isinstance(value, str):
        raise InvalidMessageError(argument, f"is {type(value).__name__}", "str or None")
    found = exact(value)
    if not found:
        raise InvalidMessageError(argument, "is empty", "text, or None to leave it out")
    if len(found) > LONGEST_TEXT:
        raise InvalidMessageError(
            argument, f"has {len(found):,} characters", f"1 to {LONGEST_TEXT} characters"
        )
    storable(argument, found)
    return found


def storable(argument: str, value: str) -> None:
    """Refuse text that PostgreSQL cannot hold: NUL, and surrogates without a partner."""
    if "\0" in value:
        raise InvalidMessageError(argument, f"{_short(value)} contains NUL", "text without the character NUL")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidMessageError(
                argument, f"{_short(value)} contains a lone surrogate", "text that UTF-8 can express"
            ) from None


def content(argument: str, value: Any) -> bytes | None:
    """Turn a key or a body into bytes; str becomes UTF-8."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return exact(value).encode()
        except UnicodeEncodeError:
            raise InvalidMessageError(
                argument, "contains a lone surrogate", "bytes, or text that UTF-8 can express"
            ) from None
    if isinstance(value, bytes):
        return bytes(memoryview(value))  # not what a subclass makes of itself
    raise InvalidMessageError(argument, f"is {type(value).__name__}", "bytes, str (sent as UTF-8) or None")


def labels(argument: str, value: Any, *, separator: str) -> tuple[str, ...]:
    """Check tags or index keys: a sequence of texts that do not contain what joins them in a record header."""
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise InvalidMessageError(argument, f"is {type(value).__name__}", "a sequence of str")
    given = tuple(value)
    for item in given:
        if not isinstance(item, str):
            raise InvalidMessageError(argument, f"contains {type(item).__name__}", "a sequence of str")
    items = tuple(map(exact, given))
    for item in items:
        if not item:
            raise InvalidMessageError(argument, "contains an empty string", "texts of at least one character")
        if separator == "|" and "|" in item:
            raise InvalidMessageError(argument, f'{_short(item)} contains "|"', 'texts without "|"')
        if separator == " " and _SPACE.search(item):
            raise InvalidMessageError(
                argument, f"{_short(item)} contains white space", "texts without white space"
            )
        storable(argument, item)
    return items


def record_headers(headers: Any) -> dict[str, str | None] | None:
    """Check the user's record headers and copy them with text values.

    PostgreSQL keeps them as jsonb: one value per name, order not kept, values text. Bytes must therefore be UTF-8.

    Args:
        headers: A mapping of names to text, UTF-8 bytes or None; or None.

    Returns:
        The copy, or None where there are no headers.

    Raises:
        InvalidMessageError: It names the header.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(
            "headers", f"is {type(headers).__name__}", "a mapping of str to str, bytes or None"
        )
    checked = {_header_name(name): _header_value(name, value) for name, value in headers.items()}
    require_event(checked)
    return checked or None


def _header_name(given: Any) -> str:
    if not isinstance(given, str):
        raise InvalidMessageError("headers", f"name {given!r} is {type(given).__name__}", "names of type str")
    name = exact(given)
    if not name:
        raise InvalidMessageError("headers", "contains an empty name", "names of at least one character")
    storable("headers", name)
    if is_reserved(name):
        if name.lower() == TRACEPARENT:
            raise InvalidMessageError("headers", f"{name!r} has a field of its own", "Message(traceparent=…)")
        raise InvalidMessageError(
            "headers",
            f"{name!r} is reserved for the outbox",
            f'names that do not begin with "{RESERVED_PREFIX}"',
        )
    return name


def _header_value(name: str, value: Any) -> str | None:
    argument = f"headers[{name!r}]"
    if isinstance(value, bytes):
        try:
            value = bytes(memoryview(value)).decode()
        except UnicodeDecodeError:
            raise InvalidMessageError(argument, "is not UTF-8", "text: str, or bytes in UTF-8") from None
    if value is not None and not isinstance(value, str):
        raise InvalidMessageError(argument, f"is {type(value).__name__}", "str, bytes in UTF-8 or None")
    found = None if value is None else exact(value)
    if found:
        storable(argument, found)
    return found


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "…")
