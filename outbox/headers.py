"""The user's record headers: what may be sent, and the JSON in which the row keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outbox import validation
from outbox.errors import InvalidMessageError
from outbox.wire import RESERVED_PREFIX, TRACEPARENT, is_reserved

# Sorted, so that the same headers are the same text; jsonb does not keep their order anyway.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def checked(headers: Any) -> dict[str, str | None] | None:
    """Check headers and answer a copy with text values; None and {} are no headers.

    PostgreSQL keeps them as jsonb: one value per name, order not kept, values text. Bytes must therefore be UTF-8.

    Raises:
        InvalidMessageError: naming the header.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(
            "headers", f"is {type(headers).__name__}", "a mapping of str to str, bytes or None"
        )
    return {_name(name): _value(name, value) for name, value in headers.items()} or None


def as_json(headers: Mapping[str, str | None]) -> str:
    """The column's text."""
    return _encode(headers)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidMessageError("headers", f"name {name!r} is {type(name).__name__}", "names of type str")
    if not name:
        raise InvalidMessageError("headers", "contains an empty name", "names of at least one character")
    validation.storable("headers", name)
    if is_reserved(name):
        if name.lower() == TRACEPARENT:
            raise InvalidMessageError("headers", f"{name!r} has a field of its own", "Message(traceparent=…)")
        raise InvalidMessageError(
            "headers",
            f"{name!r} is reserved for the outbox",
            f'names that do not begin with "{RESERVED_PREFIX}"',
        )
    return name


def _value(name: str, value: Any) -> str | None:
    argument = f"headers[{name!r}]"
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InvalidMessageError(argument, "is not UTF-8", "text: str, or bytes in UTF-8") from None
    if value is not None and not isinstance(value, str):
        raise InvalidMessageError(argument, f"is {type(value).__name__}", "str, bytes in UTF-8 or None")
    if value:
        validation.storable(argument, value)
    return value
