"""The one tree of exceptions that this library raises; errors of the driver pass through unchanged.

What a caller can do differs, so the leaves differ: repair the message, repair the configuration, or accept that
another send or another decision won. All of them are raised before anything was written, so the transaction stays
usable.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID


class OutboxError(Exception):
    """Base of everything that the outbox library raises itself."""


class InvalidMessageError(OutboxError, ValueError):
    """A message cannot be sent as it is; the text names the argument, what is wrong and what is allowed."""

    def __init__(self, argument: str, wrong: str, allowed: str) -> None:
        super().__init__(f"{argument}: {wrong}; allowed: {allowed}")
        self.argument = argument


class MessageTooLargeError(InvalidMessageError):
    """The record would be larger than its topic takes (`outbox.topic.max_message_bytes`)."""


class TooManyOrderedKeysError(InvalidMessageError):
    """One transaction would lock more different order keys by `ordered=True` than it may; nothing was written."""


class WrongMessageTypeError(InvalidMessageError):
    """The topic is registered for another type of message."""


class SelectorError(InvalidMessageError):
    """A message queue selector is unknown, cannot work with its argument, or returned no queue of the topic."""


class InvalidTopicError(OutboxError, ValueError):
    """A topic cannot be registered as asked, or is registered differently already."""


class ConfigurationError(OutboxError, ValueError):
    """An `Outbox` was made, or a call was given options, that cannot work."""


class InvalidConnectionError(OutboxError, TypeError):
    """The argument is not a connection that this outbox works on."""


class NoTransactionError(OutboxError):
    """A message was sent on an autocommit connection outside a transaction: it would not be atomic."""


class IsolationLevelError(OutboxError):
    """The connection's transaction is REPEATABLE READ or SERIALIZABLE, and the call needs READ COMMITTED."""


class IdempotencyConflictError(OutboxError):
    """The idempotency key was used before, for other content."""


class InvalidGroupError(OutboxError, ValueError):
    """A producer group cannot be registered as asked; the text names the argument and what is allowed."""


class GroupTypeError(OutboxError, ValueError):
    """A producer group is registered for another type of message (RocketMQ: a transactional group is not shared)."""


class UnknownMessageError(OutboxError, LookupError):
    """No message of this id is visible to this transaction."""


class NotAHalfMessageError(OutboxError):
    """The message was sent, not prepared, so there is nothing to decide."""


class DecidedOtherwiseError(OutboxError):
    """A half message was decided otherwise before; do not commit what depends on this decision."""

    def __init__(
        self, text: str, *, message_id: UUID, state: str, by: str, at: datetime, reason: str | None
    ) -> None:
        super().__init__(text)
        self.message_id = message_id
        self.state = state
        """What was decided: COMMITTED, ROLLED_BACK or EXHAUSTED."""
        self.by = by
        """Who decided: the actor, and the database's user in brackets."""
        self.at = at
        """When, by the database's clock, in UTC."""
        self.reason = reason
        """Why: the remark that came with the decision."""


class ExhaustedError(DecidedOtherwiseError):
    """Checks or age of a half message are used up, and its group leaves it to an operator."""


class TooLateError(OutboxError):
    """A delayed message cannot be cancelled any more: it was released to the relay, or is published."""


class NotDelayedError(OutboxError):
    """The message does not wait for a delivery time, so there is nothing to cancel."""


class InvalidSubscriptionError(OutboxError, ValueError):
    """A consumer group cannot subscribe as asked; the text names what is wrong and what is allowed."""


class SubscriptionConflictError(OutboxError):
    """Another member of the consumer group runs with another subscription, or another kind of listener."""


class ListenerError(OutboxError):
    """A listener returned nothing that is allowed, or ended the transaction that it was given."""


class ConsumerFailedError(OutboxError):
    """A consumer ended by itself: an error that trying again does not repair."""


MIGRATION_HINT = "The outbox schema is missing or older than this library needs; run: outbox db upgrade"

# SQLSTATEs of a schema that is not there or not new enough: undefined table, schema, column, function.
_SCHEMA_STATES = frozenset({"42P01", "3F000", "42703", "42883"})


_NO_PRIVILEGE = "42501"
PRIVILEGE_HINT = (
    "The connection's role lacks a right on the outbox; producers get theirs by: "
    "GRANT outbox_producer TO <that role>"
)


def add_migration_hint(error: Exception, sqlstate: str | None) -> None:
    """Note on a driver's error which command repairs the schema, or the role's privileges, if it is about these."""
    if sqlstate in _SCHEMA_STATES:
        error.add_note(MIGRATION_HINT)
    elif sqlstate == _NO_PRIVILEGE:
        error.add_note(PRIVILEGE_HINT)


def constraint_of(error: Exception) -> str | None:
    """Return the constraint that a driver's error names: psycopg has it in `diag`, asyncpg on the error."""
    found: str | None = getattr(getattr(error, "diag", error), "constraint_name", None)
    return found


class InvalidReceiptError(OutboxError):
    """A message that was received is in other hands: it was acknowledged, received again, or is a dead letter."""


def error_name(error: BaseException) -> str:
    """Name an exception by its class, and by the SQLSTATE if PostgreSQL reported it; no text of anybody is in it."""
    state, kind = getattr(error, "sqlstate", None), type(error).__name__
    return f"{kind} (SQLSTATE {state})" if isinstance(state, str) else kind
