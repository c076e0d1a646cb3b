"""Cancels a delayed message for an operator; the relay may be faster, and then this reports it."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg

from outbox.client import Outbox
from outbox.errors import DecidedOtherwiseError, NotDelayedError, TooLateError, UnknownMessageError
from outbox.records import HalfMessage
from outbox_relay.operations import half_messages, messages
from outbox_relay.operations.decide import DecisionResult, deciding
from outbox_relay.operations.filters import Filters
from outbox_relay.operations.messages import Row
from outbox_relay.text.formatting import cell, printable, seconds


def cancel(
    conn: psycopg.Connection[Any], identity: tuple[int | None, uuid.UUID | None], reason: str, wait: float
) -> DecisionResult:
    """Cancel one delayed message, in a transaction of its own.

    If the connection breaks while it commits, it is unknown whether it was cancelled: the same again is fine then.

    Args:
        conn: an autocommit connection that is in no transaction.
        identity: the message's id or message id.
        reason: why; becomes the message's remark and is kept in the audit.
        wait: seconds to wait for the transaction that holds the message at this moment.

    Raises:
        OperatorError: there is no such message.
    """
    message = half_messages.get(conn, identity)
    named = HalfMessage(message["id"], message["message_id"], message["topic"])
    try:
        with deciding(conn, wait):
            decision = Outbox().cancel(conn, named, remark=reason)
    except psycopg.errors.LockNotAvailable:
        text = (
            f"is held by another transaction, as by the relay that releases it; waited {seconds(wait)}, nothing "
            "was changed: run it again"
        )
        return DecisionResult(message, "locked", text, message["state"])
    except TooLateError:
        return DecisionResult(message, "otherwise", _too_late(conn, message), "COMMITTED")
    except NotDelayedError:
        return DecisionResult(message, "refused", _not_delayed(message), message["state"])
    except (DecidedOtherwiseError, UnknownMessageError) as error:
        return DecisionResult(message, "refused", f"cannot be cancelled: {error}", message["state"])
    before = (
        f" before, at {cell(decision.at)} by {printable(decision.by)} "
        f"({printable(decision.reason or 'no reason given')})"
    )
    return DecisionResult(
        message,
        "already" if decision.repeated else "decided",
        f"was cancelled{before}" if decision.repeated else "is cancelled: it is never published",
        decision.state,
        decision.by,
        decision.at,
        decision.reason,
    )


def _too_late(conn: psycopg.Connection[Any], message: Row) -> str:
    life = messages.life(conn, Filters(id=message["id"], message_id=message["message_id"]))
    place = None if life is None or life.message["offset"] is None else life.message
    if place is None:
        return "cannot be cancelled any more: it was due, and the relay has released it; it is published any moment"
    return (
        f"cannot be cancelled any more: it was published at {cell(place['published_at'])} to {place['topic']}, "
        f"partition {place['partition']}, offset {place['offset']}"
    )


def _not_delayed(message: Row) -> str:
    if message["state"] in half_messages.STATES:
        return (
            f"is {message['state']}, a half message that is not committed; withdraw it: "
            f"outbox tx rollback {message['id']} --reason TEXT"
        )
    return f"is {message['state']} and has no delivery time: it is published as soon as it is committed"
