"""A message's transaction id: the application's, or one made for it (RocketMQ always has one)."""

from __future__ import annotations

from uuid import uuid4

from outbox.message import Message

_FIELDS = Message.__slots__


def new_transaction_id() -> str:
    """An id that nothing else has: 32 hexadecimal digits."""
    return uuid4().hex


def identified(message: Message, transaction_id: str) -> Message:
    """The message, with this transaction id if it brings none.

    A copy without its checks, which it has passed: `dataclasses.replace` would run them once more for each send.
    """
    if message.transaction_id is not None:
        return message
    copy = object.__new__(Message)
    for field in _FIELDS:
        object.__setattr__(copy, field, getattr(message, field))
    object.__setattr__(copy, "transaction_id", transaction_id)
    return copy
